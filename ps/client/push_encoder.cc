#include "ps/client/push_encoder.h"

#include <cmath>
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "ps/client/splitter.h"

namespace tandem::ps {
namespace {

// Writes arrays back to back into one pooled buffer whose size is known beforehand.
class Writer {
 public:
  Writer(BufferPool* pool, size_t size) : buffer_(pool->Get(size)), size_(size) {}
  char* Reserve(size_t bytes) {
    char* at = buffer_.get() + used_;
    used_ += bytes;
    return at;
  }
  void Put(const void* data, size_t bytes) {
    if (bytes > 0) std::memcpy(Reserve(bytes), data, bytes);
  }
  Bytes Finish() && {
    TANDEM_CHECK(used_ == size_);
    const char* data = buffer_.get();
    return Bytes(Slice(std::move(buffer_), data, size_));
  }

 private:
  std::shared_ptr<char> buffer_;
  size_t size_;
  size_t used_ = 0;
};

size_t NumBags(const PushPart& part) { return part.offsets.empty() ? 0 : part.offsets.size() - 1; }

size_t SliceBytes(const PushPart& part, size_t ids, uint32_t dim) {
  const size_t rows = part.pooling == v1::NONE ? ids : NumBags(part);
  const size_t offsets = part.pooling == v1::NONE ? 0 : NumBags(part) + 1;
  return ids * sizeof(uint64_t) + offsets * sizeof(uint32_t) + rows * dim * sizeof(float);
}

void PutBagGradients(const PushPart& part, uint32_t dim, Writer* writer) {
  const size_t bags = NumBags(part);
  char* out = writer->Reserve(bags * dim * sizeof(float));
  for (size_t bag = 0; bag < bags; ++bag) {
    const uint32_t count = part.offsets[bag + 1] - part.offsets[bag];
    const float scale = part.pooling == v1::MEAN && count > 1 ? 1.0f / static_cast<float>(count) : 1.0f;
    for (uint32_t d = 0; d < dim; ++d) {
      const float value = part.gradients[bag * dim + d] * scale;
      std::memcpy(out, &value, sizeof(value));  // the buffer is not aligned for floats here
      out += sizeof(value);
    }
  }
}

}  // namespace

void ClipGlobalNorms(const std::vector<uint32_t>& dims, const std::vector<float>& norms,
                     std::vector<PushPart>* parts, std::vector<std::vector<float>>* scaled) {
  const auto floats = [&](size_t p) {
    const PushPart& part = (*parts)[p];
    const size_t rows = part.pooling == v1::NONE ? part.ids.size() : NumBags(part);
    return absl::MakeConstSpan(part.gradients, rows * dims[p]);
  };
  std::map<std::string, double> squares;
  for (size_t p = 0; p < parts->size(); ++p) {
    if (norms[p] == 0) continue;
    double& sum = squares[(*parts)[p].table];
    for (const float g : floats(p)) sum += static_cast<double>(g) * g;
  }
  for (size_t p = 0; p < parts->size(); ++p) {
    const double length = norms[p] == 0 ? 0.0 : std::sqrt(squares[(*parts)[p].table]);
    // A norm that is no number is for the server to refuse.
    if (!(length > norms[p]) || !std::isfinite(length)) continue;
    const float scale = static_cast<float>(norms[p] / length);
    std::vector<float>& to = scaled->emplace_back();
    for (const float g : floats(p)) to.push_back(g * scale);
    (*parts)[p].gradients = to.data();
  }
}

std::vector<EncodedPush> EncodePush(const ShardMap& map, const std::vector<PushPart>& parts,
                                    const std::vector<uint32_t>& dims, BufferPool* pool) {
  const uint32_t servers = map.num_servers();
  std::vector<std::vector<ServerIds>> split(parts.size());
  if (servers > 1) {
    for (size_t p = 0; p < parts.size(); ++p) SplitByServer(map, parts[p].ids, parts[p].offsets, &split[p]);
  }
  std::vector<EncodedPush> requests(servers);
  for (uint32_t server = 0; server < servers; ++server) {
    auto ids_of = [&](size_t p) {
      return split[p].empty() ? parts[p].ids : absl::MakeConstSpan(split[p][server].ids);
    };
    size_t total = 0;
    for (size_t p = 0; p < parts.size(); ++p) total += SliceBytes(parts[p], ids_of(p).size(), dims[p]);
    Writer writer(pool, total);
    EncodedPush& request = requests[server];
    for (size_t p = 0; p < parts.size(); ++p) {
      const PushPart& part = parts[p];
      const absl::Span<const uint64_t> ids = ids_of(p);
      v1::PushSlice* slice = request.header.add_slices();
      slice->set_table(part.table);
      slice->set_num_ids(ids.size());
      slice->set_dim(dims[p]);
      slice->set_learning_rate_factor(part.learning_rate_factor == 1.0f ? 0.0f : part.learning_rate_factor);
      if (server < part.pulled_versions.size()) slice->set_pulled_version(part.pulled_versions[server]);
      writer.Put(ids.data(), ids.size() * sizeof(uint64_t));
      const size_t row_bytes = dims[p] * sizeof(float);
      if (part.pooling != v1::NONE) {
        slice->set_pooling(v1::SUM);
        slice->set_num_bags(NumBags(part));
        const auto offsets = split[p].empty() ? part.offsets : absl::MakeConstSpan(split[p][server].offsets);
        writer.Put(offsets.data(), offsets.size() * sizeof(uint32_t));
        PutBagGradients(part, dims[p], &writer);
      } else if (split[p].empty()) {
        writer.Put(part.gradients, ids.size() * row_bytes);
      } else {
        char* out = writer.Reserve(ids.size() * row_bytes);
        for (const uint32_t position : split[p][server].positions) {
          std::memcpy(out, part.gradients + static_cast<size_t>(position) * dims[p], row_bytes);
          out += row_bytes;
        }
      }
    }
    request.payload = std::move(writer).Finish();
  }
  return requests;
}

}  // namespace tandem::ps
