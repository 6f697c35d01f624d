// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_TESTS_FUZZ_PS_UNDER_TEST_H_
#define TANDEM_TESTS_FUZZ_PS_UNDER_TEST_H_

#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "base/bytes.h"
#include "ps/server/parameter_server.h"
#include "rpc/service.h"
#include "tandem/v1/parameter_server.pb.h"

namespace tandem::fuzz {

// A parameter server with a few small tables, called through its handlers. It is created again when its
// tables have grown. Aborts when the server breaks a promise. Not thread-safe.
class PsUnderTest {
 public:
  static constexpr uint32_t kWorkers = 2;
  // Names of the tables. The last one names no table.
  static const std::vector<std::string>& Tables();
  static uint32_t DimOf(const std::string& table);

  PsUnderTest() { Restart(); }
  ~PsUnderTest() { server_->Stop(); }

  // Calls "Pull" or "Push" and returns whether the request was accepted. Checks that a refused request has
  // changed nothing, and that all rows are finite after an accepted one. `has_response_memory`: the transport
  // has memory for the response.
  bool Call(const std::string& method, const Bytes& request, bool has_response_memory);

  uint64_t next_sequence(uint32_t worker) const { return sequences_[worker]; }

 private:
  struct Snapshot {
    uint64_t rows = 0, version = 0;
    std::string values;  // of all ids seen, as read_only pulls return them
    friend bool operator==(const Snapshot&, const Snapshot&) = default;
  };

  void Restart();
  absl::StatusOr<Bytes> Send(const std::string& method, Bytes request, bool has_response_memory = false);
  std::map<std::string, Snapshot> Look();
  // Records the ids of an accepted request, which is well-formed.
  template <typename Request>
  void NoteIds(const Bytes& wire);

  std::unique_ptr<ps::ParameterServer> server_;
  std::map<std::string, rpc::Handler> handlers_;
  std::map<std::string, std::set<uint64_t>> seen_;
  std::map<std::string, Snapshot> before_;
  uint64_t sequences_[kWorkers] = {};
};

}  // namespace tandem::fuzz

#endif  // TANDEM_TESTS_FUZZ_PS_UNDER_TEST_H_
