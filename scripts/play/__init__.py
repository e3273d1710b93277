"""Plays a main queue on a lab, with MalleTrain beside it: what the demo, the end-to-end tests and benches share."""
