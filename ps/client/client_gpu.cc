// SPDX-License-Identifier: Apache-2.0
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/status.h"
#include "ps/client/client_impl.h"
#include "ps/client/payload_writer.h"

namespace tandem::ps {
namespace {

// `part` is a PullPart or a PushPart, and `memory` its array.
template <typename Part>
GpuArray GpuArrayOf(const Part& part, absl::string_view what, const float* memory, uint32_t dim) {
  const size_t rows = part.pooling == v1::NONE ? part.ids.size() : NumBags(part);
  return {.gpu = part.device.index,
          .memory = const_cast<float*>(memory),
          .bytes = rows * dim * sizeof(float),
          .stream = part.stream.value_or(nullptr),
          .ordered = part.stream.has_value(),
          .name = absl::StrCat("the ", what, " of table '", part.table, "'")};
}

}  // namespace

absl::StatusOr<std::shared_ptr<GpuCopier::Rows>> ClientImpl::StageRows(std::vector<PullPart>* parts) {
  std::vector<GpuArray> arrays;
  std::vector<PullPart*> on_gpus;
  for (PullPart& part : *parts) {
    if (part.device == Device::Cpu()) continue;
    TANDEM_ASSIGN_OR_RETURN(const KnownTable table, FindTable(part.table));
    TANDEM_RETURN_IF_ERROR(CheckBags(part.table, part.ids, part.pooling, part.offsets));
    arrays.push_back(GpuArrayOf(part, "rows", part.rows, table.config->dim()));
    on_gpus.push_back(&part);
  }
  TANDEM_ASSIGN_OR_RETURN(std::shared_ptr<GpuCopier::Rows> rows, gpu_copier_.Stage(std::move(arrays)));
  for (size_t i = 0; i < on_gpus.size(); ++i) {
    on_gpus[i]->rows = reinterpret_cast<float*>(GpuCopier::HostMemory(*rows, i));
    on_gpus[i]->device = Device::Cpu();
  }
  return rows;
}

PullDone ClientImpl::CopyRowsThen(std::shared_ptr<GpuCopier::Rows> rows, absl::Time deadline, PullDone done) {
  return [this, rows = std::move(rows), deadline,
          done = std::move(done)](absl::StatusOr<PullVersions> versions) mutable {
    if (!versions.ok()) {
      rows.reset();
      std::move(done)(std::move(versions));
      return;
    }
    gpu_copier_.Finish(
        std::move(rows), deadline,
        [versions = *std::move(versions), done = std::move(done)](absl::Status copied) mutable {
          if (copied.ok()) {
            std::move(done)(std::move(versions));
          } else {
            std::move(done)(Annotate(copied, "the rows were pulled, but not copied"));
          }
        });
  };
}

absl::Status ClientImpl::FetchGradients(std::vector<PushPart>* parts) {
  std::vector<GpuArray> arrays;
  std::vector<PushPart*> on_gpus;
  for (PushPart& part : *parts) {
    if (part.device == Device::Cpu()) continue;
    TANDEM_ASSIGN_OR_RETURN(const KnownTable table, FindTable(part.table));
    TANDEM_RETURN_IF_ERROR(CheckBags(part.table, part.ids, part.pooling, part.offsets));
    arrays.push_back(GpuArrayOf(part, "gradients", part.gradients, table.config->dim()));
    on_gpus.push_back(&part);
  }
  TANDEM_ASSIGN_OR_RETURN(std::vector<std::shared_ptr<char>> fetched,
                          gpu_copier_.Fetch(std::move(arrays), MonotonicNow() + options_.timeout));
  for (size_t i = 0; i < on_gpus.size(); ++i) {
    on_gpus[i]->gradients = reinterpret_cast<const float*>(fetched[i].get());
    on_gpus[i]->owner = std::move(fetched[i]);
    on_gpus[i]->device = Device::Cpu();
  }
  return absl::OkStatus();
}

}  // namespace tandem::ps
