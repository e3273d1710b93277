"""What the journal teaches: scalability curves, what to measure next, stragglers, holes and supply."""
