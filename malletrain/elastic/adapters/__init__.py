"""Frameworks that bring their own loop: each trains in an elastic session, with few changed lines.

Each module needs its framework, and nothing else here imports one: `pip install 'malletrain[adapters]'`.
"""
