// SPDX-License-Identifier: Apache-2.0
// The codecs: any bytes are either refused or decoded. Decoded values are encoded again, and decoding that
// gives the same values.

#include <cmath>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "base/status.h"
#include "ps/wire/id_codec.h"
#include "ps/wire/value_codec.h"
#include "rpc/wire/bulk_codec.h"
#include "tandem/v1/parameter_server.pb.h"
#include "tests/fuzz/byte_source.h"
#include "tests/fuzz/targets.h"

namespace tandem::fuzz {
namespace {

// Returns memory that ends where the bytes do.
std::unique_ptr<char[]> Exact(Input input) {
  auto memory = std::make_unique<char[]>(input.size());
  if (!input.empty()) std::memcpy(memory.get(), input.data(), input.size());
  return memory;
}

void PackAndUnpack(absl::Span<const uint64_t> ids) {
  ps::IdPacker packer;
  const size_t bytes = packer.Plan(ids);
  TANDEM_CHECK(bytes >= ps::MinPackedBytes(ids.size()) && bytes <= ps::MaxPackedBytes(ids.size()));
  auto packed = std::make_unique<char[]>(bytes);
  packer.Write(ids, packed.get());
  std::vector<uint64_t> back(ids.size());
  TANDEM_CHECK(ps::UnpackIds({packed.get(), bytes}, ids.size(), back.data()).ok());
  TANDEM_CHECK(absl::MakeConstSpan(back) == ids);
}

}  // namespace

// Input: u16 count, then packed ids. The same bytes are also used as raw ids.
void FuzzIdCodec(Input input) {
  ByteSource source(input);
  const size_t count = source.Take<uint16_t>();
  const Input rest = source.Rest();
  auto packed = Exact(rest);
  auto ids = std::make_unique<uint64_t[]>(count);
  if (ps::UnpackIds({packed.get(), rest.size()}, count, ids.get()).ok()) {
    PackAndUnpack(absl::MakeConstSpan(ids.get(), count));
  }
  std::vector<uint64_t> raw(rest.size() / sizeof(uint64_t));
  if (!raw.empty()) std::memcpy(raw.data(), rest.data(), raw.size() * sizeof(uint64_t));
  PackAndUnpack(raw);
}

// Input: u8 format, u8 dim - 1, u8 chunk size, then rows.
void FuzzValueCodec(Input input) {
  ByteSource source(input);
  const auto format = static_cast<ps::v1::ValueFormat>(source.Take<uint8_t>() % 4);
  const size_t dim = 1 + source.Take<uint8_t>();
  const size_t chunk = source.Take<uint8_t>();
  const size_t row_bytes = ps::RowBytes(format, dim);
  const size_t rows = source.Rest().size() / row_bytes;
  const Input encoded = source.Rest().first(rows * row_bytes);
  auto exact = Exact(encoded);
  std::vector<float> values(rows * dim), pieced(rows * dim), again(rows * dim);
  ps::DecodeRows(format, exact.get(), nullptr, rows, dim, values.data());
  const Bytes message = InChunks(ToString(encoded), chunk);
  BytesReader reader(message);
  TANDEM_CHECK(ps::DecodeRows(format, &reader, nullptr, rows, dim, pieced.data()));
  TANDEM_CHECK(rows == 0 || std::memcmp(values.data(), pieced.data(), values.size() * sizeof(float)) == 0);
  const float largest = ps::LargestMagnitude(values);
  auto encoded_again = std::make_unique<char[]>(rows * row_bytes);
  ps::EncodeRows(format, values.data(), nullptr, rows, dim, encoded_again.get());
  ps::DecodeRows(format, encoded_again.get(), nullptr, rows, dim, again.data());
  if (!std::isfinite(largest)) return;
  TANDEM_CHECK(std::isfinite(ps::LargestMagnitude(again)));
  // Values on the grid of a format stay there. The int8 grid of a row depends on its largest number, and ends
  // where the header says.
  const bool int8 = format == ps::v1::VALUES_INT8;
  if (int8 && (largest > 0x1p126f || largest < 0x1p-100f)) return;
  const float tolerance = int8 ? largest / 250 : 0.0f;
  for (size_t i = 0; i < values.size(); ++i) TANDEM_CHECK(std::abs(values[i] - again[i]) <= tolerance);
}

// Input: u8 chunk size, then a message.
void FuzzBulkCodec(Input input) {
  ByteSource source(input);
  const size_t chunk = source.Take<uint8_t>();
  const std::string text = ToString(source.Rest());
  const Bytes wire = InChunks(text, chunk);
  ps::v1::PullRequest header, whole;
  Bytes payload;
  const bool decoded = rpc::DecodeBulk(wire, &header, &payload).ok();
  // An accepted message is one that protobuf would read. (Protobuf may accept more: it copies, this code only
  // looks.)
  if (!decoded) return;
  TANDEM_CHECK(whole.ParseFromString(text));
  TANDEM_CHECK(whole.payload() == payload.Flatten());
  whole.clear_payload();
  TANDEM_CHECK(header.SerializeAsString() == whole.SerializeAsString());
  ps::v1::PullRequest again;
  Bytes payload_again;
  TANDEM_CHECK(rpc::DecodeBulk(rpc::EncodeBulk(header, payload), &again, &payload_again).ok());
  TANDEM_CHECK(payload_again.Flatten() == payload.Flatten());
  TANDEM_CHECK(again.SerializeAsString() == header.SerializeAsString());
}

}  // namespace tandem::fuzz
