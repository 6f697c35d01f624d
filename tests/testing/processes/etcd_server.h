// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_TESTS_TESTING_PROCESSES_ETCD_SERVER_H_
#define TANDEM_TESTS_TESTING_PROCESSES_ETCD_SERVER_H_

// etcd servers for one test (Debian's etcd-server), on free ports, with their data in a temporary directory.

#include <arpa/inet.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/status.h"
#include "tests/testing/temp_dir.h"

namespace tandem::testing {

// An etcd server. Not thread-safe. Killed with the object, or with the test.
class EtcdServer {
 public:
  static bool Installed() { return ::access("/usr/bin/etcd", X_OK) == 0; }

  // Starts a cluster of `members` servers with further `options`; each knows the others. Starts again with
  // other ports if another process has taken one in the meantime. Returns an empty vector if that fails 5
  // times.
  static std::vector<std::unique_ptr<EtcdServer>> StartCluster(int members,
                                                               const std::vector<std::string>& options = {},
                                                               const std::string& host = "127.0.0.1") {
    for (int attempt = 0; attempt < 5; ++attempt) {
      std::vector<std::unique_ptr<EtcdServer>> cluster;
      std::string all;
      for (int i = 0; i < members; ++i) {
        cluster.emplace_back(new EtcdServer(absl::StrCat("m", i), host));
        absl::StrAppend(&all, i == 0 ? "" : ",", "m", i, "=", cluster[i]->PeerUrl());
      }
      bool up = true;
      for (auto& member : cluster) member->Launch(all, options);
      for (auto& member : cluster) up = up && member->AwaitUp();
      if (up) return cluster;
    }
    return {};
  }
  static std::unique_ptr<EtcdServer> Start(const std::vector<std::string>& options = {},
                                           const std::string& host = "127.0.0.1") {
    auto cluster = StartCluster(1, options, host);
    return cluster.empty() ? nullptr : std::move(cluster[0]);
  }

  ~EtcdServer() { Kill(); }

  std::string address() const { return absl::StrCat(host_, ":", client_port_); }
  const std::string& directory() const { return directory_.path(); }
  void Signal(int signal) {
    if (pid_ > 0) ::kill(pid_, signal);
  }
  void Kill() {
    if (pid_ <= 0) return;
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
    pid_ = -1;
  }
  // Starts the server again after Kill, with its data and its address. Other programs must not take its port
  // meanwhile, so the server needs a host of its own, such as 127.0.77.2.
  bool Restart() {
    Exec();
    return AwaitUp();
  }

 private:
  EtcdServer(std::string name, std::string host) : name_(std::move(name)), host_(std::move(host)) {
    client_port_ = FreePort();
    do {
      peer_port_ = FreePort();
    } while (peer_port_ == client_port_);
  }

  int FreePort() const {
    const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    ::inet_pton(AF_INET, host_.c_str(), &address.sin_addr);
    socklen_t size = sizeof(address);
    TANDEM_CHECK(::bind(fd, reinterpret_cast<sockaddr*>(&address), size) == 0);
    TANDEM_CHECK(::getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size) == 0);
    ::close(fd);
    return ntohs(address.sin_port);
  }

  std::string PeerUrl() const { return absl::StrCat("http://", host_, ":", peer_port_); }

  void Launch(const std::string& cluster, const std::vector<std::string>& options) {
    const bool tls = std::find(options.begin(), options.end(), "--client-cert-auth") != options.end();
    const std::string client = absl::StrCat(tls ? "https://" : "http://", address());
    args_ = {"etcd",
             "--name",
             name_,
             "--data-dir",
             directory_.File("data"),
             "--listen-client-urls",
             client,
             "--advertise-client-urls",
             client,
             "--listen-peer-urls",
             PeerUrl(),
             "--initial-advertise-peer-urls",
             PeerUrl(),
             "--initial-cluster",
             cluster,
             "--log-level",
             "error"};
    args_.insert(args_.end(), options.begin(), options.end());
    Exec();
  }

  void Exec() {
    std::vector<char*> argv;
    for (std::string& arg : args_) argv.push_back(arg.data());
    argv.push_back(nullptr);
    const std::string log = directory_.File("log");
    pid_ = ::fork();
    if (pid_ != 0) return;
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    const int fd = ::open(log.c_str(), O_WRONLY | O_CREAT | O_APPEND, 0644);
    ::dup2(fd, 1);
    ::dup2(fd, 2);
    ::execv("/usr/bin/etcd", argv.data());
    ::_exit(127);
  }

  // Waits until the server accepts connections. Returns false if it has ended or 30 seconds have passed.
  bool AwaitUp() {
    const absl::Time deadline = absl::Now() + absl::Seconds(30);
    while (absl::Now() < deadline) {
      if (::waitpid(pid_, nullptr, WNOHANG) == pid_) {
        pid_ = -1;
        return false;
      }
      const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
      sockaddr_in address = {};
      address.sin_family = AF_INET;
      address.sin_port = htons(client_port_);
      ::inet_pton(AF_INET, host_.c_str(), &address.sin_addr);
      const bool up = ::connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0;
      ::close(fd);
      if (up) return true;
      ::usleep(20000);  // another program starts: there is no event to wait for
    }
    return false;
  }

  TempDir directory_;
  const std::string name_, host_;
  int client_port_ = 0, peer_port_ = 0;
  std::vector<std::string> args_;
  pid_t pid_ = -1;
};

}  // namespace tandem::testing

#endif  // TANDEM_TESTS_TESTING_PROCESSES_ETCD_SERVER_H_
