# SPDX-License-Identifier: Apache-2.0
"""The example scripts of Ascend's documentation, with the optimizer they are written for."""

import pytest
import tensorflow as tf
from loops import session, v1

import npu_keras
from npu_keras import ExponentialUpdateLossScaleManager
from npu_keras.v1 import NPULossScaleOptimizer, NPUOptimizer


@pytest.fixture(autouse=True)
def in_graph(graph):
    return graph


class LAMB(v1.train.Optimizer):
    """LAMB as scripts of TensorFlow 1 write it: it makes its slots while it applies."""

    def __init__(
        self, learning_rate, weight_decay_rate, beta_1, beta_2, epsilon, exclude_from_weight_decay
    ):
        super().__init__(False, "LAMBOptimizer")
        self.learning_rate, self.weight_decay_rate = learning_rate, weight_decay_rate
        self.beta_1, self.beta_2, self.epsilon = beta_1, beta_2, epsilon
        self.exclude_from_weight_decay = exclude_from_weight_decay

    def apply_gradients(self, grads_and_vars, global_step=None, name=None):
        assignments = []
        for gradient, variable in grads_and_vars:
            if gradient is None:
                continue
            name = variable.op.name
            m, v = (self._slot(name, kind, variable) for kind in ("lamb_m", "lamb_v"))
            next_m = self.beta_1 * m + (1.0 - self.beta_1) * gradient
            next_v = self.beta_2 * v + (1.0 - self.beta_2) * tf.square(gradient)
            update = next_m / (tf.sqrt(next_v) + self.epsilon)
            if not any(each in name for each in self.exclude_from_weight_decay):
                update += self.weight_decay_rate * variable
            w_norm, u_norm = tf.norm(variable), tf.norm(update)
            both = tf.logical_and(w_norm > 0, u_norm > 0)
            ratio = tf.where(both, w_norm / u_norm, 1.0)
            new = variable - ratio * self.learning_rate * update
            assignments += [variable.assign(new), m.assign(next_m), v.assign(next_v)]
        if global_step is not None:
            assignments.append(global_step.assign_add(1))
        return tf.group(*assignments, name="lamb")

    def _slot(self, name, kind, variable):
        return v1.get_variable(
            f"{name}/{kind}",
            variable.shape,
            trainable=False,
            initializer=v1.zeros_initializer(),
        )


class Flags:
    distributed = False
    init_loss_scale_value = 2**32

    def __init__(self, npu_bert_loss_scale):
        self.npu_bert_loss_scale = npu_bert_loss_scale


def lamb():
    return LAMB(0.5, 0.01, 0.9, 0.999, 1e-6, ["LayerNorm", "layer_norm", "bias"])


def first_script(flags):
    """How BERT for Ascend makes its optimizer: one class for everything."""
    optimizer = lamb()
    if flags.npu_bert_loss_scale not in [None, -1]:
        if flags.npu_bert_loss_scale == 0:
            loss_scale_manager = ExponentialUpdateLossScaleManager(
                init_loss_scale=flags.init_loss_scale_value,
                incr_every_n_steps=1000,
                decr_every_n_nan_or_inf=2,
                decr_ratio=0.5,
            )
        elif flags.npu_bert_loss_scale >= 1:
            loss_scale_manager = npu_keras.FixedLossScaleManager(
                loss_scale=flags.npu_bert_loss_scale
            )
        else:
            raise ValueError(f"Invalid loss scale: {flags.npu_bert_loss_scale}")
        optimizer = NPUOptimizer(
            optimizer,
            loss_scale_manager,
            is_distributed=flags.distributed,
            is_loss_scale=True,
            is_tailing_optimization=True,
        )
    else:
        optimizer = NPUOptimizer(optimizer, is_distributed=flags.distributed)
    return optimizer


def second_script(flags):
    """The same with a class for the loss scale alone."""
    opt = lamb()
    if flags.npu_bert_loss_scale not in [None, -1]:
        opt_tmp = opt
        if flags.npu_bert_loss_scale == 0:
            loss_scale_manager = ExponentialUpdateLossScaleManager(
                init_loss_scale=2**32,
                incr_every_n_steps=1000,
                decr_every_n_nan_or_inf=2,
                decr_ratio=0.5,
            )
        elif flags.npu_bert_loss_scale >= 1:
            loss_scale_manager = npu_keras.FixedLossScaleManager(
                loss_scale=flags.npu_bert_loss_scale
            )
        else:
            raise ValueError(f"Invalid loss scale: {flags.npu_bert_loss_scale}")
        if npu_keras.distribute.size() > 1:
            opt = NPULossScaleOptimizer(opt_tmp, loss_scale_manager, is_distributed=True)
        else:
            opt = NPULossScaleOptimizer(opt_tmp, loss_scale_manager)
    return opt


def train(optimizer, feeds):
    """A BERT-like training step; returns the weights after each session step."""
    kernel = v1.get_variable("dense/kernel", initializer=[3.0, 4.0])
    bias = v1.get_variable("dense/bias", initializer=[1.0])
    x = v1.placeholder(tf.float32, [])
    step = v1.train.get_or_create_global_step()
    loss = tf.reduce_sum(tf.square(kernel)) * x + tf.reduce_sum(bias) * x
    variables = v1.trainable_variables()
    pairs = optimizer.compute_gradients(loss, variables)
    clipped, _ = tf.clip_by_global_norm([gradient for gradient, _ in pairs], 1.0)
    op = optimizer.apply_gradients(zip(clipped, variables, strict=True), global_step=step)
    seen = []
    with session() as opened:
        for feed in feeds:
            opened.run(op, {x: feed})
            weights = opened.run([kernel, bias])
            seen.append([*weights[0].tolist(), *weights[1].tolist()])
        return seen, int(opened.run(step))


@pytest.fixture(scope="module")
def plain_weights():
    with tf.Graph().as_default():
        return train(lamb(), [1.0, 2.0])


@pytest.mark.parametrize("script", [first_script, second_script])
@pytest.mark.parametrize("scale", [0, 1, 1024, None, -1])
def test_scripts_of_the_documentation(script, scale, plain_weights):
    optimizer = script(Flags(scale))
    with_scaling = scale not in (None, -1)
    feeds = [1.0, float("inf"), 2.0] if with_scaling else [1.0, 2.0]
    weights, steps = train(optimizer, feeds)
    want, _ = plain_weights
    assert steps == 2
    assert weights[0] == pytest.approx(want[0], rel=1e-6)
    assert weights[-1] == pytest.approx(want[-1], rel=1e-6)
    if with_scaling:
        assert weights[1] == weights[0]


@pytest.mark.parametrize("script", [first_script, second_script])
def test_scripts_refuse_other_flags(script):
    with pytest.raises(ValueError, match="Invalid loss scale"):
        script(Flags(0.5))
