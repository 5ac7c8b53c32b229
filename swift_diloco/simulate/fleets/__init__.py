"""Planning: goodput, staleness and traffic of a fleet under interruptions."""
