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

// A live parameter server with a few small tables, called through its handlers. It is built anew when its
// tables have grown. Aborts when a promise is broken. Not thread-safe.
class PsUnderTest {
 public:
  static constexpr uint32_t kWorkers = 2;
  // Names of the tables; the last one is of no table.
  static const std::vector<std::string>& Tables();
  static uint32_t DimOf(const std::string& table);

  PsUnderTest() { Restart(); }
  ~PsUnderTest() { server_->Stop(); }

  // Calls "Pull" or "Push". A refused request has changed nothing; after an accepted one every row is finite.
  // Returns whether it was accepted. `lends`: over a transport with memory for the answer.
  bool Call(const std::string& method, const Bytes& request, bool lends);

  uint64_t next_sequence(uint32_t worker) const { return sequences_[worker]; }

 private:
  struct Snapshot {
    uint64_t rows = 0, version = 0;
    std::string values;  // of all ids seen, as read_only pulls give them
    friend bool operator==(const Snapshot&, const Snapshot&) = default;
  };

  void Restart();
  absl::StatusOr<Bytes> Send(const std::string& method, Bytes request, bool lends = false);
  std::map<std::string, Snapshot> Look();
  // Notes the ids of an accepted request, which is well-formed.
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
