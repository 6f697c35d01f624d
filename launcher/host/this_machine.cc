// SPDX-License-Identifier: Apache-2.0
// Implements Machine for the machine that this process runs on.

#include <fcntl.h>
#include <gnu/libc-version.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <utility>

#include "absl/base/config.h"
#include "absl/cleanup/cleanup.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "base/read_file.h"
#include "base/status.h"
#include "hwy/targets.h"
#include "launcher/host/gpu_libraries.h"
#include "launcher/host/machine.h"
#include "launcher/host/run_program.h"
#include "launcher/process/spawn.h"
#include "rpc/grpc/grpc_library.h"

namespace tandem::launcher {
namespace {

absl::Status Failure(absl::string_view what) {
  return absl::UnavailableError(absl::StrCat(what, ": ", std::strerror(errno)));
}

// Returns the address as numbers, without an IPv6 scope; "" for other address families.
std::string Numeric(const sockaddr* address) {
  char text[NI_MAXHOST] = "";
  if (address == nullptr || (address->sa_family != AF_INET && address->sa_family != AF_INET6)) return "";
  const socklen_t size = address->sa_family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6);
  if (::getnameinfo(address, size, text, sizeof(text), nullptr, 0, NI_NUMERICHOST) != 0) return "";
  const std::string full = text;
  return full.substr(0, full.find('%'));
}

class RealMachine final : public Machine {
 public:
  absl::StatusOr<std::string> ReadFile(const std::string& path) const override {
    TANDEM_ASSIGN_OR_RETURN(const std::string text, tandem::ReadFile(path));
    return std::string(absl::StripAsciiWhitespace(text));
  }

  std::optional<std::string> Variable(const std::string& name) const override {
    const char* value = std::getenv(name.c_str());
    return value == nullptr ? std::nullopt : std::optional<std::string>(value);
  }

  std::vector<Interface> Interfaces() const override {
    ifaddrs* list = nullptr;
    if (::getifaddrs(&list) != 0) return {};
    absl::Cleanup free_list = [list] { ::freeifaddrs(list); };
    std::vector<Interface> interfaces;
    for (const ifaddrs* one = list; one != nullptr; one = one->ifa_next) {
      auto same = std::find_if(interfaces.begin(), interfaces.end(),
                               [&](const Interface& i) { return i.name == one->ifa_name; });
      if (same == interfaces.end()) same = interfaces.insert(interfaces.end(), {one->ifa_name});
      same->up = (one->ifa_flags & IFF_UP) != 0;
      same->loopback = (one->ifa_flags & IFF_LOOPBACK) != 0;
      if (std::string address = Numeric(one->ifa_addr); !address.empty()) {
        same->addresses.push_back(std::move(address));
      }
    }
    return interfaces;
  }

  std::string HostName() const override {
    char name[256] = "";
    return ::gethostname(name, sizeof(name) - 1) == 0 ? name : "";
  }

  absl::StatusOr<std::vector<std::string>> Resolve(const std::string& host) const override {
    addrinfo hints{}, *found = nullptr;
    hints.ai_socktype = SOCK_STREAM;
    if (const int error = ::getaddrinfo(host.c_str(), nullptr, &hints, &found); error != 0) {
      return absl::UnavailableError(::gai_strerror(error));
    }
    absl::Cleanup release = [found] { ::freeaddrinfo(found); };
    std::vector<std::string> addresses;
    for (const addrinfo* one = found; one != nullptr; one = one->ai_next) {
      std::string address = Numeric(one->ai_addr);
      if (!address.empty() && std::find(addresses.begin(), addresses.end(), address) == addresses.end()) {
        addresses.push_back(std::move(address));
      }
    }
    return addresses;
  }

  absl::Status CanListen(int port) const override {
    const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0) return Failure("cannot make a TCP socket");
    absl::Cleanup close_fd = [fd] { ::close(fd); };
    const int on = 1;  // as servers do: a port in TIME_WAIT then counts as free
    ::setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_ANY);
    address.sin_port = htons(static_cast<uint16_t>(port));
    if (::bind(fd, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0 ||
        ::listen(fd, 1) != 0) {
      return Failure(port == 0 ? "no TCP port can be listened on" : "cannot be listened on");
    }
    return absl::OkStatus();
  }

  absl::StatusOr<FileSystem> StatFileSystem(const std::string& path) const override {
    struct statvfs stat {};
    if (::statvfs(path.c_str(), &stat) != 0) return Failure(path);
    return FileSystem{uint64_t{stat.f_blocks} * stat.f_frsize, uint64_t{stat.f_bavail} * stat.f_frsize};
  }

  absl::Status CanMapMemory() const override {
    const int fd = ::memfd_create("tandem-doctor", MFD_CLOEXEC);
    if (fd < 0) return Failure("memfd_create fails");
    absl::Cleanup close_fd = [fd] { ::close(fd); };
    constexpr size_t kSize = 1 << 20;
    if (::ftruncate(fd, kSize) != 0) return Failure("memory of a memfd cannot be had");
    void* memory = ::mmap(nullptr, kSize, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (memory == MAP_FAILED) return Failure("a memfd cannot be mapped");
    ::munmap(memory, kSize);
    return absl::OkStatus();
  }

  Limit GetLimit(Resource resource) const override {
    const auto which = resource == Resource::kOpenFiles   ? RLIMIT_NOFILE
                       : resource == Resource::kProcesses ? RLIMIT_NPROC
                       : resource == Resource::kCore      ? RLIMIT_CORE
                                                          : RLIMIT_MEMLOCK;
    rlimit limit{};
    if (::getrlimit(which, &limit) != 0) return {kUnlimited, kUnlimited};
    const auto value = [](rlim_t v) { return v == RLIM_INFINITY ? kUnlimited : uint64_t{v}; };
    return {value(limit.rlim_cur), value(limit.rlim_max)};
  }

  int UsableCores() const override {
    cpu_set_t set;
    return ::sched_getaffinity(0, sizeof(set), &set) == 0 ? CPU_COUNT(&set) : OnlineCores();
  }
  int OnlineCores() const override { return static_cast<int>(::sysconf(_SC_NPROCESSORS_ONLN)); }

  std::vector<std::string> SimdTargets() const override {
    std::vector<std::string> names;
    // A better target has a lower bit.
    for (int64_t bit = 1; bit > 0 && bit <= HWY_SCALAR; bit <<= 1) {
      if ((hwy::SupportedTargets() & bit) != 0) names.push_back(hwy::TargetName(bit));
    }
    return names;
  }

  absl::StatusOr<std::string> FindProgram(const std::string& name) const override {
    return launcher::FindProgram(name);
  }
  absl::StatusOr<std::string> RunProgram(const std::vector<std::string>& command) const override {
    return launcher::RunProgram(command, absl::Seconds(5));
  }
  absl::StatusOr<Cuda> FindCuda() const override { return LoadCuda(); }
  absl::StatusOr<GpuLibrary> FindNccl() const override { return LoadNccl(); }
  absl::StatusOr<GpuLibrary> FindCudaRuntime() const override { return LoadCudaRuntime(); }

  std::vector<Version> Versions() const override {
    return {{"Tandem", TANDEM_VERSION, ""},
            {"compiler", absl::StrCat("g++ ", __VERSION__), ""},
            {"glibc", absl::StrCat(__GLIBC__, ".", __GLIBC_MINOR__), ::gnu_get_libc_version()},
            {"gRPC", TANDEM_GRPC_VERSION, rpc::GrpcVersion()},
            {"protobuf", TANDEM_PROTOBUF_VERSION, ""},
            {"Abseil", absl::StrCat(ABSL_LTS_RELEASE_VERSION, ".", ABSL_LTS_RELEASE_PATCH_LEVEL), ""},
            {"Gloo", TANDEM_GLOO_VERSION, ""},
            {"Highway", TANDEM_HIGHWAY_VERSION, ""},
            {"kernel", "", ReadFile("/proc/sys/kernel/osrelease").value_or("not known")}};
  }
  bool BuiltWithMpi() const override { return TANDEM_BUILT_WITH_MPI; }
};

}  // namespace

std::unique_ptr<Machine> ThisMachine() { return std::make_unique<RealMachine>(); }

}  // namespace tandem::launcher
