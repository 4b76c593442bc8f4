"""One policy for threads: cores that may be used, and when products stay on one of them."""

import json
import os
import pickle
import subprocess
import sys
import threading

import jax
import numpy as np
import pytest
from threadpoolctl import threadpool_info

import onebasin as ob
from alignment_cases import gaussian, mlp_shapes, relu_mlp, same_tree
from onebasin.threads import SMALL, available_cores, one_thread_for_products, pool

pytestmark = pytest.mark.fast


def blas_threads():
    return {lib["num_threads"] for lib in threadpool_info() if lib["user_api"] == "blas"}


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="no affinities here")
def test_a_process_with_one_core_uses_one_thread():
    first = available_cores()[0]
    text = (
        f"import os; os.sched_setaffinity(0, [{first}]); from onebasin import threads; import json;"
        "print(json.dumps([threads.available_cores(), threads.pool()._max_workers]))"
    )
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == [[first], 1]
    assert pool()._max_workers == len(available_cores())


def test_limits_end_in_reverse_order_and_after_errors():
    before = blas_threads()
    with one_thread_for_products():
        with one_thread_for_products():
            assert blas_threads() == {1}
        assert blas_threads() == {1}
    assert blas_threads() == before
    with pytest.raises(KeyError), one_thread_for_products():
        raise KeyError
    assert blas_threads() == before


def test_other_threads_leave_the_setting_alone():
    before, inside, leave = blas_threads(), threading.Event(), threading.Event()

    def other():
        with one_thread_for_products():
            inside.set()
            leave.wait(30)

    thread = threading.Thread(target=other)
    thread.start()
    assert inside.wait(30)
    assert blas_threads() == before
    with one_thread_for_products():
        leave.set()
        thread.join()
        assert blas_threads() == {1}
    assert blas_threads() == before


@pytest.mark.parametrize("size", [SMALL, SMALL + 1])
def test_small_groups_are_aligned_on_one_core(size):
    before, seen = blas_threads(), []

    def features(q):
        seen.append(blas_threads())
        return (q.mean,)

    params = {"w": np.random.default_rng(0).normal(size=(size, 2)).astype(np.float32)}
    symmetry = ob.Symmetry.by_hand(params, {"units": [("w", 0)]})
    own = ob.Objective("own", features, features, has_barycentre=True)
    moved = symmetry.act(symmetry.random(key=jax.random.key(0)), params)
    found = ob.align(moved, to=params, symmetry=symmetry, objective=own)
    np.testing.assert_array_equal(found.posterior["w"], params["w"])
    ob.align_many([moved, params], symmetry=symmetry, objective=own, progress="silent")
    assert set(map(frozenset, seen)) == {frozenset({1} if size <= SMALL else before)}
    assert blas_threads() == before


def test_symmetries_permutations_and_alignments_are_pickled_as_values():
    q = gaussian(mlp_shapes((6, 5)), 0)
    symmetry = ob.find_symmetry(relu_mlp, q.mean, np.ones((2, 5), np.float32))
    p = symmetry.random(key=jax.random.key(1))
    assert hash(symmetry) != 0
    assert symmetry.identity() != p
    # What they cache stays here.
    assert set(vars(pickle.loads(pickle.dumps(symmetry)))) < set(vars(symmetry))
    for value in (symmetry, p, ob.Permutation({"g": np.array([[0, 1], [1, 0]])})):
        again = pickle.loads(pickle.dumps(value))
        assert again == value
        assert hash(again) == hash(value)
    for objective in ("w2", "l2", "kl", "reverse-kl", "kl-reduced", "log-density"):
        found = ob.align(symmetry.act(p, q), to=q, symmetry=symmetry, objective=objective)
        again = pickle.loads(pickle.dumps(found))
        assert again.permutation == found.permutation
        assert again.distance_after == found.distance_after
        assert same_tree(again.posterior, found.posterior)
