// SPDX-License-Identifier: Apache-2.0
#include "ps/storage/gather_rows.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <set>
#include <string>
#include <vector>

#include "base/random.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "ps/storage/row_codec.h"
#include "tests/ps/storage/few_buckets.h"
#include "tests/testing/every_target.h"

namespace tandem::ps {
namespace {

// Rows of some ids, the numbers of each a function of its id.
class Rows {
 public:
  Rows(size_t dim, DType dtype) : buckets_(RowLayout(dim, /*state_floats=*/dim % 3, dtype), /*buckets=*/4) {}
  void Insert(uint64_t id) {
    if (!ids_.insert(id).second) return;
    const RowLayout& layout = buckets_.layout();
    char* const row = buckets_.Insert(id, /*version=*/0);
    std::vector<float> values(layout.dim);
    for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(Mix64(id + i) % 2000) - 1000.0f;
    StoreRows(layout.dtype, absl::MakeConstSpan(&row, 1), layout.dim, values.data(), nullptr);
  }
  // Returns what GatherRows should write to an array of such bytes, and the positions that it should list.
  std::string Expected(const std::vector<uint64_t>& ids, const RowFormat& form,
                       std::vector<uint32_t>* missing) {
    std::string out(ids.size() * form.out_bytes(), '\0');
    for (size_t i = 0; i < ids.size(); ++i) {
      if (ids_.count(ids[i]) == 0) {
        missing->push_back(static_cast<uint32_t>(i));
        continue;
      }
      const char* const row = buckets_.StoreOf(ids[i]).Find(ids[i]);
      char* const to = out.data() + i * form.out_bytes();
      if (form.out == RowFormat::Out::kStored) {
        std::memcpy(to, row, form.stored_bytes());
      } else {
        std::vector<float> values(form.dim);
        LoadRows(form.dtype, absl::MakeConstSpan(&row, 1), form.dim, values.data());
        std::memcpy(to, values.data(), form.out_bytes());
      }
    }
    return out;
  }
  void Gather(const std::vector<uint64_t>& ids, const RowFormat& form, char* out,
              std::vector<uint32_t>* missing) const {
    GatherRows(buckets_.indexes(), buckets_.pool().address(), ids, form, out, /*first=*/0, missing);
  }

 private:
  FewBuckets buckets_;
  std::set<uint64_t> ids_;
};

// Returns what Gather writes. Checks that it leaves the lines before and after its output alone. The output
// begins `offset` bytes after the start of a line.
void ExpectGathers(Rows* rows, const std::vector<uint64_t>& ids, const RowFormat& form, size_t offset) {
  constexpr size_t kLine = 64;
  std::vector<uint32_t> want_missing, missing;
  const std::string want = rows->Expected(ids, form, &want_missing);
  std::string memory(want.size() + 4 * kLine, '#');
  char* const line = memory.data() + kLine - reinterpret_cast<uintptr_t>(memory.data()) % kLine;
  char* const out = line + offset;
  rows->Gather(ids, form, out, &missing);
  ASSERT_EQ(missing, want_missing);
  ASSERT_EQ(std::memcmp(out, want.data(), want.size()), 0)
      << form.dim << " numbers, form " << static_cast<int>(form.out) << ", offset " << offset;
  ASSERT_TRUE(std::all_of(memory.data(), out, [](char c) { return c == '#'; }));
  ASSERT_TRUE(std::all_of(out + want.size(), memory.data() + memory.size(), [](char c) { return c == '#'; }));
}

class GatherRowsTest : public ::testing::TestWithParam<size_t> {};
INSTANTIATE_TEST_SUITE_P(Dims, GatherRowsTest, ::testing::Values(1, 3, 16, 24, 32, 64, 128, 200));

TEST_P(GatherRowsTest, EveryRowComesInEveryFormAtEverySizeOfCallWithEveryInstructionSet) {
  for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16}) {
    Rows rows(GetParam(), dtype);
    CounterRandom random(/*seed=*/GetParam(), 0);
    tandem::testing::OnEveryTarget([&] {
      // Rows are added a few at a time, so that lookups meet indexes that are growing, with ids beyond their
      // lines.
      for (int round = 0; round < 4; ++round) {
        for (int n = 0; n < 150; ++n) rows.Insert(random.Below(3000));
        if (round == 2) rows.Insert(0);
        for (const size_t count : {size_t{0}, size_t{1}, size_t{31}, size_t{33}, size_t{48}, size_t{49},
                                   size_t{80}, size_t{81}, size_t{200}, kMaxLookup}) {
          std::vector<uint64_t> ids(count);
          for (uint64_t& id : ids) id = random.Below(4) == 0 ? 0 : random.Below(4000);
          for (const auto out :
               {RowFormat::Out::kFloats, RowFormat::Out::kFloatsAround, RowFormat::Out::kStored}) {
            ExpectGathers(&rows, ids, {out, dtype, GetParam()}, 4 * random.Below(17));
            ExpectGathers(&rows, ids, {out, dtype, GetParam()}, 0);
            if (::testing::Test::HasFatalFailure()) return;
          }
        }
      }
    });
  }
}

TEST_P(GatherRowsTest, NothingIsThereInAnEmptyTableNotEvenIdZero) {
  Rows rows(GetParam(), DType::kF32);
  ExpectGathers(&rows, {0, 1, ~uint64_t{0}}, {RowFormat::Out::kFloats, DType::kF32, GetParam()}, 0);
}

}  // namespace
}  // namespace tandem::ps
