# SPDX-License-Identifier: Apache-2.0
"""What the demos train: a small network that reads scikit-learn's handwritten digits."""

from typing import Any, NamedTuple

BATCH_SIZE, SEED = 32, 7


class Digits(NamedTuple):
    """Images (n, 64) as float32 in 0 to 1 and labels (n,) from 0 to 9, in two parts."""

    train_images: Any
    train_labels: Any
    test_images: Any
    test_labels: Any


def load_digits() -> Digits:
    """Returns scikit-learn's 1797 handwritten digits, a fifth of them for the test."""
    from sklearn.datasets import load_digits as load
    from sklearn.model_selection import train_test_split

    images, labels = load(return_X_y=True)
    parts = train_test_split(
        (images / 16).astype("float32"), labels, test_size=0.2, random_state=SEED, stratify=labels
    )
    train_images, test_images, train_labels, test_labels = parts
    return Digits(train_images, train_labels, test_images, test_labels)


def network(policy: str, seed: int = SEED) -> Any:
    """Returns a network with one hidden layer, not compiled; sets seed and dtype policy.

    Args:
        policy: the dtype policy.
        seed: of the first weights and of dropout.
    """
    import keras

    keras.utils.set_random_seed(seed)
    keras.config.set_dtype_policy(policy)
    return keras.Sequential(
        [
            keras.layers.Input((64,)),
            keras.layers.Dense(64, activation="relu", name="hidden"),
            keras.layers.Dropout(0.1),
            keras.layers.Dense(10, dtype="float32", name="digits"),
        ]
    )


def inner_optimizer() -> Any:
    """Returns the optimizer of the demos, without loss scaling."""
    import keras

    return keras.optimizers.AdamW(2e-3, weight_decay=1e-3)


def loss() -> Any:
    """Returns the loss of the demos."""
    import keras

    return keras.losses.SparseCategoricalCrossentropy(from_logits=True)
