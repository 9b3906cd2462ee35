"""Policy: who may do what, by the rule names operators know."""

from kilonova.policy.checks import PolicyError
from kilonova.policy.enforcer import Policy, sample

__all__ = ["Policy", "PolicyError", "sample"]
