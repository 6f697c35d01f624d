#ifndef TANDEM_LAUNCHER_HOST_MACHINE_H_
#define TANDEM_LAUNCHER_HOST_MACHINE_H_

// What `tandem doctor` asks about the machine it runs on. An interface, so that tests can be any machine.

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace tandem::launcher {

// Used by one thread. Nothing here changes the machine; sockets, files and processes are gone on return.
class Machine {
 public:
  virtual ~Machine() = default;

  // The file's text without white space at its ends; NotFound, or why else it cannot be read.
  virtual absl::StatusOr<std::string> ReadFile(const std::string& path) const = 0;
  virtual std::optional<std::string> Variable(const std::string& name) const = 0;  // of the environment

  struct Interface {
    std::string name;
    bool up = false, loopback = false;
    std::vector<std::string> addresses;  // numeric
  };
  virtual std::vector<Interface> Interfaces() const = 0;
  virtual std::string HostName() const = 0;
  // Its numeric addresses. May block for as long as name lookup does.
  virtual absl::StatusOr<std::vector<std::string>> Resolve(const std::string& host) const = 0;
  // Whether a TCP port of all interfaces can be listened on; 0: any.
  virtual absl::Status CanListen(int port) const = 0;

  struct FileSystem {
    uint64_t total_bytes = 0, free_bytes = 0;
  };
  virtual absl::StatusOr<FileSystem> StatFileSystem(const std::string& path) const = 0;
  // Whether memory without a name can be made and mapped, as the shm backend does.
  virtual absl::Status CanMapMemory() const = 0;

  enum class Resource { kOpenFiles, kProcesses, kLockedMemory, kCore };
  struct Limit {
    uint64_t soft = 0, hard = 0;  // kUnlimited: none
  };
  static constexpr uint64_t kUnlimited = ~uint64_t{0};
  virtual Limit GetLimit(Resource resource) const = 0;

  virtual int UsableCores() const = 0;  // by affinity
  virtual int OnlineCores() const = 0;
  virtual std::vector<std::string> SimdTargets() const = 0;  // best first, of what this program contains

  // Where a program of that name lies in PATH; NotFound.
  virtual absl::StatusOr<std::string> FindProgram(const std::string& name) const = 0;
  // What it prints to stdout and stderr; DeadlineExceeded after 5 s.
  virtual absl::StatusOr<std::string> RunProgram(const std::vector<std::string>& command) const = 0;

  struct Cuda {
    int driver_version = 0;  // 12040: CUDA 12.4
    std::vector<std::string> gpus;
  };
  // NotFound: there is no libcuda.so.1; other errors: it does not work.
  virtual absl::StatusOr<Cuda> FindCuda() const = 0;
  // Version number, as 21805 for 2.18.5; NotFound: there is no libnccl.so.2.
  virtual absl::StatusOr<int> FindNccl() const = 0;

  struct Version {
    std::string library, built, running;  // empty: it does not tell
  };
  virtual std::vector<Version> Versions() const = 0;
  virtual bool BuiltWithMpi() const = 0;
};

std::unique_ptr<Machine> ThisMachine();

}  // namespace tandem::launcher

#endif  // TANDEM_LAUNCHER_HOST_MACHINE_H_
