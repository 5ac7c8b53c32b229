"""Seeds of simulated worlds: `swift_diloco.simulate` is the world, here are the runs that judge the brains by it."""
