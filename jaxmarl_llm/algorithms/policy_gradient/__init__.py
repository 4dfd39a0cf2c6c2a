"""The policy-gradient family: one learner, named algorithms as settings of it."""
