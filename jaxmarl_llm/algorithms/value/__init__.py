"""The value family: one learner, named algorithms as settings of it."""
