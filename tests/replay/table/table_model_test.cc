// SPDX-License-Identifier: Apache-2.0
// Compares a table with a model that keeps a plain list of items and computes everything anew.

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "replay/table/table.h"
#include "tests/replay/items.h"
#include "tests/testing/status_matchers.h"

namespace tandem::replay {
namespace {

struct ModelItem {
  int64_t id = 0;
  double priority = 0;
  uint32_t times_sampled = 0;
  std::shared_ptr<const Chunk> chunk;  // the table may have dropped its own
};

class Model {
 public:
  explicit Model(const TableOptions& options) : options_(options) {}

  bool MayInsert() const {
    return items_.size() < options_.limit.min_size ||
           diff() + options_.limit.samples_per_insert <= options_.limit.max_diff;
  }
  uint64_t Available() const {
    if (items_.size() < options_.limit.min_size) return 0;
    double n = std::floor(diff() - options_.limit.min_diff);
    if (options_.max_times_sampled > 0) {
      double left = 0;
      for (const ModelItem& item : items_) left += options_.max_times_sampled - item.times_sampled;
      n = std::min(n, left);
    }
    return static_cast<uint64_t>(std::clamp(n, 0.0, 1e9));
  }
  double diff() const {
    return static_cast<double>(inserts) * options_.limit.samples_per_insert - static_cast<double>(samples) -
           static_cast<double>(credited);
  }
  uint64_t bytes() const {
    std::set<const Chunk*> chunks;
    uint64_t bytes = 0;
    for (const ModelItem& item : items_) {
      if (chunks.insert(item.chunk.get()).second) bytes += item.chunk->bytes();
    }
    return bytes;
  }

  void Insert(const ModelItem& item) {
    while (items_.size() >= options_.max_items) Evict();
    while (options_.max_bytes > 0 && !items_.empty()) {
      items_.push_back(item);
      const uint64_t with = bytes();
      items_.pop_back();
      if (with <= options_.max_bytes) break;
      Evict();
    }
    items_.push_back(item);
    largest_ = std::max(largest_, item.priority);
    ++inserts;
  }
  // Returns the probability of drawing this item, 0 if it cannot be drawn, and draws it.
  double Draw(int64_t id) {
    const auto found =
        std::find_if(items_.begin(), items_.end(), [&](const ModelItem& item) { return item.id == id; });
    if (found == items_.end()) return 0;
    const double probability = Probability(*found);
    ++samples;
    if (++found->times_sampled == options_.max_times_sampled) {
      items_.erase(found);
      removed_ = true;
    }
    return probability;
  }
  void Update(int64_t id, double priority) {
    for (ModelItem& item : items_) {
      if (item.id == id) {
        item.priority = priority;
        largest_ = std::max(largest_, priority);
      }
    }
  }
  // After a call that may have removed items: samples that no item can give any more do not count.
  void Credit() {
    if (!std::exchange(removed_, false) || options_.max_times_sampled == 0) return;
    double left = 0;
    for (const ModelItem& item : items_) left += options_.max_times_sampled - item.times_sampled;
    while (diff() >= left + 1) ++credited;
  }
  void Reset() {
    items_.clear();
    removed_ = false;
    inserts = samples = credited = 0;
  }
  const std::vector<ModelItem>& items() const { return items_; }
  double largest() const { return largest_; }
  TableOptions& options() { return options_; }
  void Shrink() {
    while (items_.size() > options_.max_items) Evict();
    while (options_.max_bytes > 0 && bytes() > options_.max_bytes) Evict();
  }

  uint64_t inserts = 0, samples = 0, credited = 0, evicted = 0;

 private:
  // Returns the item that a deterministic selector takes. Items are in the order of their insertion.
  size_t Deterministic(SelectorKind kind) const {
    size_t best = 0;
    for (size_t i = 1; i < items_.size(); ++i) {
      if (kind == SelectorKind::kLifo ||
          (kind == SelectorKind::kLowest && items_[i].priority < items_[best].priority) ||
          (kind == SelectorKind::kHighest && items_[i].priority > items_[best].priority)) {
        best = i;
      }
    }
    return best;
  }
  double Probability(const ModelItem& item) const {
    const SelectorKind kind = options_.sampler.kind;
    const double count = static_cast<double>(items_.size());
    if (kind == SelectorKind::kUniform) return 1 / count;
    if (kind != SelectorKind::kPrioritized) return items_[Deterministic(kind)].id == item.id ? 1 : 0;
    double sum = 0;
    for (const ModelItem& other : items_) sum += std::pow(other.priority, options_.sampler.exponent);
    return sum == 0 ? 1 / count : std::pow(item.priority, options_.sampler.exponent) / sum;
  }
  void Evict() {
    const auto victim = items_.begin() + static_cast<ptrdiff_t>(Deterministic(options_.remover.kind));
    items_.erase(victim);
    removed_ = true;
    ++evicted;
  }

  TableOptions options_;
  std::vector<ModelItem> items_;
  double largest_ = 1;
  bool removed_ = false;
};

TableOptions RandomOptions(CounterRandom& random) {
  TableOptions options = {.name = "table"};
  options.sampler = {.kind = static_cast<SelectorKind>(random.Below(6)),
                     .exponent = random.UniformDouble() * 2};
  constexpr SelectorKind kRemovers[] = {SelectorKind::kFifo, SelectorKind::kLifo, SelectorKind::kLowest,
                                        SelectorKind::kHighest};
  options.remover = {.kind = kRemovers[random.Below(4)]};
  options.max_items = 1 + random.Below(40);
  options.max_bytes = random.Below(2) == 0 ? 0 : 24 + random.Below(200);
  options.max_times_sampled = static_cast<uint32_t>(random.Below(4));
  options.seed = random();
  const uint64_t min_size = 1 + random.Below(std::min<uint64_t>(options.max_items, 5));
  switch (random.Below(4)) {
    case 0:
      options.limit = RateLimit::MinSize(min_size);
      break;
    case 1:
      options.limit = RateLimit::Queue(1 + random.Below(20), static_cast<uint32_t>(1 + random.Below(3)));
      break;
    case 2:
      options.limit = RateLimit::Ratio(0.5 + static_cast<double>(random.Below(5)), min_size, 10);
      break;
    case 3:
      options.limit = {.samples_per_insert = 0.25, .min_diff = -3, .max_diff = 2.5, .min_size = min_size};
      break;
  }
  // An item cannot be sampled as often as the limit wants; such options are refused.
  if (options.max_times_sampled > 0 && options.limit.samples_per_insert > options.max_times_sampled) {
    options.max_times_sampled = static_cast<uint32_t>(std::ceil(options.limit.samples_per_insert));
  }
  return options;
}

class TableModel : public ::testing::TestWithParam<uint64_t> {};

TEST_P(TableModel, ATableDoesWhatThePlainListDoes) {
  CounterRandom random(GetParam(), 77);
  for (int round = 0; round < 40; ++round) {
    const TableOptions options = RandomOptions(random);
    auto created = Table::Create(options);
    TANDEM_ASSERT_OK(created);
    const std::shared_ptr<Table> table = *created;
    Model model(options);
    const auto layout = testing::IdLayout();
    std::map<int64_t, uint64_t> keys;
    std::shared_ptr<const Chunk> chunk;
    int64_t next_id = 0;
    for (int step = 0; step < 400; ++step) {
      const uint64_t action = random.Below(20);
      if (action < 9) {  // an insert of one step of a chunk that up to three items share
        if (next_id % 3 == 0 || chunk == nullptr) chunk = testing::IdChunk(layout, next_id, 3);
        const std::optional<double> priority =
            random.Below(4) == 0 ? std::nullopt : std::make_optional(static_cast<double>(random.Below(5)));
        const bool may = model.MayInsert();
        size_t inserted = 0;
        const absl::Status status =
            table->Insert({testing::ItemOf(layout, chunk, static_cast<uint32_t>(next_id % 3), 1, priority)},
                          "", absl::InfinitePast(), &inserted);
        ASSERT_EQ(status.ok(), may) << status << ", diff " << model.diff();
        ASSERT_EQ(inserted, may ? 1u : 0u);
        if (may) {
          model.Insert({.id = next_id, .priority = priority.value_or(model.largest()), .chunk = chunk});
          model.Credit();
        }
        ++next_id;
      } else if (action < 16) {
        const auto batch = static_cast<uint32_t>(1 + random.Below(4));
        const uint64_t available = model.Available();
        const auto sample = table->SampleItems({.batch = batch, .min_batch = 1}, "", absl::InfinitePast());
        ASSERT_EQ(sample.ok(), available > 0) << sample.status();
        if (sample.ok()) {
          ASSERT_EQ(sample->items.size(), std::min<uint64_t>(batch, available));
          for (const SampledItem& item : sample->items) {
            const int64_t id = testing::IdOf(*item.trajectory);
            keys[id] = item.key;
            const double expected = model.Draw(id);
            ASSERT_NEAR(item.probability, expected, 1e-12);
            ASSERT_GT(expected, 0);
            model.Credit();
          }
        }
      } else if (action < 18 && !keys.empty()) {
        const auto [id, key] = *std::next(keys.begin(), static_cast<ptrdiff_t>(random.Below(keys.size())));
        const double priority = static_cast<double>(random.Below(6));
        const bool present = std::any_of(model.items().begin(), model.items().end(),
                                         [id = id](const ModelItem& item) { return item.id == id; });
        ASSERT_EQ(*table->UpdatePriorities({key}, {priority}), present ? 1u : 0u);
        model.Update(id, priority);
      } else if (action == 18 && random.Below(10) == 0) {
        model.options().max_items = std::max<uint64_t>(model.options().limit.min_size, 1 + random.Below(40));
        TANDEM_ASSERT_OK(
            table->SetLimits(options.limit, model.options().max_items, model.options().max_bytes));
        model.Shrink();
        model.Credit();
      } else if (action == 19 && random.Below(40) == 0) {
        table->Reset();
        model.Reset();
      }
      // The table can always go on.
      ASSERT_TRUE(model.MayInsert() || model.Available() > 0) << "diff " << model.diff();
      const TableInfo info = table->Info();
      ASSERT_EQ(info.items, model.items().size());
      ASSERT_EQ(info.bytes, model.bytes());
      ASSERT_EQ(info.inserts, model.inserts);
      ASSERT_EQ(info.samples, model.samples);
      ASSERT_EQ(info.credited, model.credited);
      ASSERT_EQ(info.why_no_insert.empty(), model.MayInsert());
      ASSERT_EQ(info.why_no_sample.empty(), model.Available() > 0);
      // The ledger: what was inserted is present or has left for a reason that is counted.
      ASSERT_EQ(info.total_inserts, info.items + info.removals.by_max_items + info.removals.by_max_bytes +
                                        info.removals.consumed + info.removals.by_reset);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Seeds, TableModel, ::testing::Range<uint64_t>(1, 6));

}  // namespace
}  // namespace tandem::replay
