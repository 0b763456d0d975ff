# SPDX-License-Identifier: Apache-2.0
"""What a rank of a contestant runs; each is a program of its own, in the stack of its maker."""
