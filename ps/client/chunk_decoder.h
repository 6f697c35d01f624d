#ifndef TANDEM_PS_CLIENT_CHUNK_DECODER_H_
#define TANDEM_PS_CLIENT_CHUNK_DECODER_H_

// Puts the rows of a pull's answer in place while it arrives.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/bytes.h"
#include "rpc/wire/response_source.h"
#include "tandem/v1/parameter_server.pb.h"

namespace tandem::ps {

namespace v1 = ::tandem::v1;

// Where the rows of one slice of an answer go.
struct RowsTo {
  v1::ValueFormat values = v1::VALUES_F32;
  const uint32_t* positions =
      nullptr;  // [rows]: row i goes to floats + positions[i] * dim; or none: floats + i * dim
  size_t rows = 0;
  size_t dim = 0;
  float* floats = nullptr;
};

// For the answers of one server to one pull. Thread-compatible: told one piece at a time.
class ChunkDecoder : public rpc::ResponseSink {
 public:
  // What is wrong with an answer of such a header, if anything; called before any row is written.
  using Check = absl::AnyInvocable<absl::Status(const v1::PullResponse& header, size_t payload_bytes)>;

  // `slices`: of the answer, in order. Their arrays outlive the call.
  ChunkDecoder(std::vector<RowsTo> slices, Check check)
      : slices_(std::move(slices)), check_(std::move(check)) {}

  void OnChunk(uint64_t offset, uint64_t total, Bytes chunk) override;

  // Of a call that ended well with `rest`: nothing when all rows are in place, else the answer, which is
  // still to be read. An error: what `check` said.
  absl::StatusOr<std::optional<Bytes>> Finish(Bytes rest);

 private:
  void Begin(uint64_t total, Bytes chunk);
  // Rows, the next ones of the answer.
  void Decode(const Bytes& bytes);
  // `count` rows that lie at `in`, of slice `slice_`.
  void Put(BytesReader* in, size_t count);

  const std::vector<RowsTo> slices_;
  Check check_;
  uint64_t left_ = 1;      // bytes of the answer that are to come
  bool in_order_ = false;  // the answer is of the form that can be read as it comes
  absl::Status wrong_;     // with it
  Bytes whole_;            // of an answer in another form: what has come of it
  size_t slice_ = 0;       // of the next row
  size_t row_ = 0;         // in it
  std::string cut_;        // the beginning of a row that ends in the next piece
};

}  // namespace tandem::ps

#endif  // TANDEM_PS_CLIENT_CHUNK_DECODER_H_
