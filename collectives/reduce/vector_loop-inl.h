// SPDX-License-Identifier: Apache-2.0
// The loop that all reduction kernels share, and the operators that mean the same for every element type.
// Included once per instruction set (hwy/foreach_target.h), hence the guard.

#if defined(TANDEM_COLLECTIVES_REDUCE_VECTOR_LOOP_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TANDEM_COLLECTIVES_REDUCE_VECTOR_LOOP_INL_H_
#undef TANDEM_COLLECTIVES_REDUCE_VECTOR_LOOP_INL_H_
#else
#define TANDEM_COLLECTIVES_REDUCE_VECTOR_LOOP_INL_H_
#endif

#include <cstddef>
#include <cstdint>

#include "collectives/reduce/kernels.h"
#include "hwy/cache_control.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace tandem::collectives::internal {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

// The memory format of elements. Plain elements are stored in the type in which they are computed.
template <typename T>
struct Plain {
  using Stored = T;
  using Computed = T;
  template <class D>
  static HWY_INLINE hn::Vec<D> Load(D d, const T* from) {
    // A LoadU of one lane may read through a T*, which requires an aligned address. Users' arrays can have
    // any.
    if constexpr (hn::MaxLanes(D()) == 1) {
      T one;
      hwy::CopyBytes<sizeof(T)>(from, &one);
      return hn::Set(d, one);
    } else {
      return hn::LoadU(d, from);
    }
  }
  template <class D>
  static HWY_INLINE void Store(D d, hn::Vec<D> v, T* to) {
    if constexpr (hn::MaxLanes(D()) == 1) {
      const T one = hn::GetLane(v);
      hwy::CopyBytes<sizeof(T)>(&one, to);
    } else {
      hn::StoreU(v, d, to);
    }
  }
  template <class D>
  static HWY_INLINE void Stream(D d, hn::Vec<D> v, T* to) {
    hn::Stream(v, d, to);
  }
};

// An operator of a reduction. Prepare is applied to each source, Combine joins the next source to the result
// so far, and Finish is applied to the result.
struct Operator {
  template <class D, class V>
  static HWY_INLINE V Prepare(D d, const Reduction& r, size_t source, V v) {
    return v;
  }
  template <class D, class V>
  static HWY_INLINE V Finish(D d, const Reduction& r, V v) {
    return v;
  }
};
struct Sum : Operator {
  template <class D, class V>
  static HWY_INLINE V Combine(D d, V so_far, V next) {
    return hn::Add(so_far, next);
  }
};
struct Product : Operator {
  template <class D, class V>
  static HWY_INLINE V Combine(D d, V so_far, V next) {
    return hn::Mul(so_far, next);
  }
};
// hn::Min is not used: its result for a NaN depends on the instruction set.
struct Least : Operator {
  template <class D, class V>
  static HWY_INLINE V Combine(D d, V so_far, V next) {
    return hn::IfThenElse(hn::Lt(next, so_far), next, so_far);
  }
};
struct Greatest : Operator {
  template <class D, class V>
  static HWY_INLINE V Combine(D d, V so_far, V next) {
    return hn::IfThenElse(hn::Lt(so_far, next), next, so_far);
  }
};

template <class Memory, class Op>
class VectorLoop {
 public:
  explicit VectorLoop(const Reduction& r)
      : r_(r), out_(static_cast<Stored*>(r.out)), stream_(r.stream), num_sources_(r.num_sources) {}

  HWY_INLINE void Run() const {
    const hn::ScalableTag<Computed> whole;
    const hn::CappedTag<Computed, 16 / sizeof(Computed)> narrow;
    const hn::CappedTag<Computed, 1> single;
    const size_t lanes = hn::Lanes(whole);
    const size_t n = r_.n;
    size_t i = 0;
    if (stream_ || n * sizeof(Stored) >= kAlignFromBytes) {
      const size_t vector_bytes = lanes * sizeof(Stored);
      const size_t past = reinterpret_cast<uintptr_t>(out_) % vector_bytes;
      // If out is not aligned to its elements, no step reaches a boundary, and none is needed.
      const size_t head =
          past % sizeof(Stored) == 0 && past != 0 ? (vector_bytes - past) / sizeof(Stored) : 0;
      for (; i < head && i < n; ++i) Step(single, i, /*stream=*/false);
    }
    for (; i + 4 * lanes <= n; i += 4 * lanes) FourSteps(whole, i);
    for (; i + lanes <= n; i += lanes) Step(whole, i, stream_);
    if (hn::Lanes(narrow) < lanes) {
      for (; i + hn::Lanes(narrow) <= n; i += hn::Lanes(narrow)) Step(narrow, i, /*stream=*/false);
    }
    for (; i < n; ++i) Step(single, i, /*stream=*/false);
    if (stream_) hwy::FlushStream();
  }

 private:
  using Stored = typename Memory::Stored;
  using Computed = typename Memory::Computed;
  // The first steps of smaller results cost more than stores that cross cache lines.
  static constexpr size_t kAlignFromBytes = 4096;

  template <class D>
  HWY_INLINE hn::Vec<D> Load(D d, size_t source, size_t i) const {
    const Stored* from = static_cast<const Stored*>(r_.sources[source]) + i;
    return Op::Prepare(d, r_, source, Memory::Load(d, from));
  }

  template <class D>
  HWY_INLINE void Step(D d, size_t i, bool stream) const {
    hn::Vec<D> a = Load(d, 0, i);
    for (size_t s = 1; s < num_sources_; ++s) a = Op::Combine(d, a, Load(d, s, i));
    a = Op::Finish(d, r_, a);
    stream ? Memory::Stream(d, a, out_ + i) : Memory::Store(d, a, out_ + i);
  }

  template <class D>
  HWY_INLINE void FourSteps(D d, size_t i) const {
    const size_t lanes = hn::Lanes(d);
    const size_t ib = i + lanes, ic = ib + lanes, id = ic + lanes;
    hn::Vec<D> a = Load(d, 0, i), b = Load(d, 0, ib), c = Load(d, 0, ic), e = Load(d, 0, id);
    for (size_t s = 1; s < num_sources_; ++s) {
      a = Op::Combine(d, a, Load(d, s, i));
      b = Op::Combine(d, b, Load(d, s, ib));
      c = Op::Combine(d, c, Load(d, s, ic));
      e = Op::Combine(d, e, Load(d, s, id));
    }
    a = Op::Finish(d, r_, a);
    b = Op::Finish(d, r_, b);
    c = Op::Finish(d, r_, c);
    e = Op::Finish(d, r_, e);
    if (stream_) {
      Memory::Stream(d, a, out_ + i);
      Memory::Stream(d, b, out_ + ib);
      Memory::Stream(d, c, out_ + ic);
      Memory::Stream(d, e, out_ + id);
    } else {
      Memory::Store(d, a, out_ + i);
      Memory::Store(d, b, out_ + ib);
      Memory::Store(d, c, out_ + ic);
      Memory::Store(d, e, out_ + id);
    }
  }

  const Reduction& r_;
  Stored* const out_;
  const bool stream_;
  const size_t num_sources_;
};

template <class Memory, class Op>
HWY_NOINLINE void Loop(const Reduction& r) {
  VectorLoop<Memory, Op>(r).Run();
}

}  // namespace HWY_NAMESPACE
}  // namespace tandem::collectives::internal
HWY_AFTER_NAMESPACE();

#endif
