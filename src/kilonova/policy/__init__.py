"""Policy: access rules with oslo.policy's syntax, under the rule names of the OpenStack services."""

from kilonova.policy.checks import PolicyError
from kilonova.policy.enforcer import Policy, sample_policy

__all__ = ["Policy", "PolicyError", "sample_policy"]
