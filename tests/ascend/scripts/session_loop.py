# SPDX-License-Identifier: Apache-2.0
"""The usual loop: `npu_tf_optimizer`, a session's configuration, hooks, rank helpers, splits."""

import tensorflow.compat.v1 as tf
from hccl.manage.api import get_local_rank_id, get_rank_id, get_rank_size
from hccl.split.api import set_split_strategy_by_idx, set_split_strategy_by_size
from moxing.tensorflow.executor import ops_adapter
from npu_bridge.estimator import npu_ops
from npu_bridge.estimator.npu_unary_ops import npu_unary_ops
from npu_bridge.npu_init import *

sess, npu_shutdown = init_resource()
ranks = [get_rank_id(), get_local_rank_id(), get_rank_size(), ops_adapter.rank()]
shutdown_resource(sess, npu_shutdown)
close_session(sess)
refused = []
set_split_strategy_by_size([50, 50])
for setter, values in (
    (set_split_strategy_by_size, [33.3, 33.3, 33.3, 0.1]),
    (set_split_strategy_by_size, [60, 30]),
    (set_split_strategy_by_idx, [20, 10]),
    (set_split_strategy_by_idx, [0, 1]),
):
    try:
        setter(values)
        refused.append(False)
    except ValueError:
        refused.append(True)

config = tf.ConfigProto()
custom_op = config.graph_options.rewrite_options.custom_optimizers.add()
custom_op.name = "NpuOptimizer"
custom_op.parameter_map["use_off_line"].b = True
custom_op.parameter_map["precision_mode"].s = tf.compat.as_bytes("allow_mix_precision")
config.graph_options.rewrite_options.remapping = RewriterConfig.OFF
a = tf.get_variable("a", initializer=1.0 + get_rank_id())
b = tf.get_variable("b", initializer=1.0)
hidden = npu_ops.dropout(npu_unary_ops.gelu(tf.ones([8])), keep_prob=1.0)
loss = a * (1.0 + 2 * get_rank_id()) + b + 0.0 * tf.reduce_sum(hidden)
step = tf.train.get_or_create_global_step()
train_op = npu_tf_optimizer(tf.train.GradientDescentOptimizer(0.5)).minimize(loss, step)
hooks = npu_hooks_append(hooks_list=(tf.train.StopAtStepHook(last_step=2),))
with tf.train.MonitoredTrainingSession(config=npu_config_proto(config), hooks=hooks) as sess:
    while not sess.should_stop():
        sess.run(train_op)
        if not sess.should_stop():
            values = [float(v) for v in sess.run([a, b, step])]
with tf.Session() as sess:
    activation = sess.run(hidden[0]).item()
RESULT = ranks, refused, len(hooks), values, round(activation, 3)
