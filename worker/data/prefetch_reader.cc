// SPDX-License-Identifier: Apache-2.0
#include "worker/data/prefetch_reader.h"

#include <algorithm>
#include <utility>

#include "base/trace/trace.h"

namespace tandem::worker {
namespace {

constexpr trace::Kind kTraceRead{"read batch", "data"};

}  // namespace

PrefetchReader::PrefetchReader(std::unique_ptr<BatchReader> reader, size_t depth)
    : reader_(std::move(reader)), depth_(std::max<size_t>(depth, 1)), thread_([this] { Run(); }) {}

PrefetchReader::~PrefetchReader() {
  {
    absl::MutexLock lock(&mutex_);
    stopped_ = true;
  }
  thread_.join();
}

void PrefetchReader::Run() {
  trace::NameThread("reader");
  while (true) {
    Parsed parsed;
    {
      absl::MutexLock lock(&mutex_);
      mutex_.Await(absl::Condition(this, &PrefetchReader::MayParse));
      if (stopped_) return;
      if (!recycled_.empty()) {
        parsed.batch = std::move(recycled_.back());
        recycled_.pop_back();
      }
    }
    {
      const trace::Span span(kTraceRead);
      parsed.result = reader_->Next(&parsed.batch);
    }
    parsed.malformed_lines = reader_->malformed_lines();
    const bool more = parsed.result.ok() && *parsed.result;
    absl::MutexLock lock(&mutex_);
    ready_.push_back(std::move(parsed));
    if (!more) return;
  }
}

absl::StatusOr<bool> PrefetchReader::Next(Batch* batch) {
  if (!last_.ok() || !*last_) {
    batch->Clear();
    return last_;
  }
  absl::MutexLock lock(&mutex_);
  mutex_.Await(absl::Condition(this, &PrefetchReader::HasParsed));
  Parsed& parsed = ready_.front();
  std::swap(*batch, parsed.batch);
  malformed_lines_ = parsed.malformed_lines;
  last_ = std::move(parsed.result);
  recycled_.push_back(std::move(parsed.batch));
  ready_.pop_front();
  return last_;
}

}  // namespace tandem::worker
