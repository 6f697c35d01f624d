// SPDX-License-Identifier: Apache-2.0
#include "tests/collectives/chaos/chaos_cluster.h"

#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <system_error>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/time/clock.h"
#include "base/read_file.h"
#include "tests/testing/processes/processes.h"

namespace tandem::collectives {
namespace {

bool Runs(const std::string& command) {
  return std::system(absl::StrCat(command, " >/dev/null 2>&1").c_str()) == 0;
}

}  // namespace

ChaosCluster::ChaosCluster(std::vector<std::string> command) : command_(std::move(command)) {
  if (!testing::EtcdServer::Installed()) {
    trouble_ = "there is no /usr/bin/etcd: apt-get install etcd-server";
    return;
  }
  has_cables_ = ::geteuid() == 0 && Runs("ip -V") && MakeCables();
  if (!has_cables_) {
    for (std::string& host : hosts_) host = "127.0.0.1";
    outside_ = "127.0.0.1";
  }
  etcd_ =
      testing::EtcdServer::StartCluster(3, {"--heartbeat-interval=50", "--election-timeout=300"}, outside_);
  if (etcd_.empty()) {
    trouble_ = "etcd did not start";
  }
}

ChaosCluster::~ChaosCluster() {
  for (int node = 0; node < kNodes; ++node) KillNode(node);
  etcd_.clear();
  for (const std::string& space : spaces_) {
    if (!space.empty()) Runs("ip netns del " + space);
  }
  if (!bridge_.empty()) Runs("ip link del " + bridge_);
}

bool ChaosCluster::MakeCables() {
  const int number = ::getpid() % 50000;
  const std::string net = absl::StrCat("10.", 100 + number / 250 % 100, ".", number % 250, ".");
  bridge_ = absl::StrCat("tdb", number);
  outside_ = net + "254";
  if (!Runs(absl::StrCat("ip link add ", bridge_, " type bridge")) ||
      !Runs(absl::StrCat("ip addr add ", outside_, "/24 dev ", bridge_)) ||
      !Runs(absl::StrCat("ip link set ", bridge_, " up"))) {
    return false;
  }
  for (int node = 0; node < kNodes; ++node) {
    spaces_[node] = absl::StrCat("tandem-chaos-", number, "-", node);
    cables_[node] = absl::StrCat("tdc", number, node == 0 ? "a" : "b");
    hosts_[node] = absl::StrCat(net, node + 1);
    const std::string in = "ip -n " + spaces_[node];
    if (!Runs("ip netns add " + spaces_[node]) ||
        !Runs(
            absl::StrCat("ip link add ", cables_[node], " type veth peer name eth0 netns ", spaces_[node])) ||
        !Runs(absl::StrCat("ip link set ", cables_[node], " master ", bridge_, " up")) ||
        !Runs(absl::StrCat(in, " addr add ", hosts_[node], "/24 dev eth0")) ||
        !Runs(in + " link set eth0 up") || !Runs(in + " link set lo up")) {
      return false;
    }
  }
  return true;
}

void ChaosCluster::StartNode(int node) {
  const std::string etcd =
      absl::StrCat(etcd_[0]->address(), ",", etcd_[1]->address(), ",", etcd_[2]->address());
  const std::string logs = directory_.File(absl::StrCat("logs-", node));
  std::vector<std::string> command;
  for (const std::string& word : command_) {
    command.push_back(absl::StrReplaceAll(word, {{"{etcd}", etcd}, {"{first}", hosts_[0]}, {"{log}", logs}}));
  }
  std::vector<char*> argv;
  for (std::string& word : command) argv.push_back(word.data());
  argv.push_back(nullptr);
  const std::string space = has_cables_ ? absl::StrCat("/var/run/netns/", spaces_[node]) : "";
  const std::string log = directory_.File(absl::StrCat("node-", node));
  launchers_[node] = ::fork();
  if (launchers_[node] != 0) return;
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (!space.empty()) {
    const int fd = ::open(space.c_str(), O_RDONLY | O_CLOEXEC);
    if (fd < 0 || ::setns(fd, CLONE_NEWNET) != 0) ::_exit(126);
  }
  const int out = ::open(log.c_str(), O_WRONLY | O_CREAT | O_APPEND, 0644);
  ::dup2(out, 1);
  ::dup2(out, 2);
  ::execv(argv[0], argv.data());
  ::_exit(127);
}

void ChaosCluster::KillNode(int node) {
  if (launchers_[node] <= 0) return;
  ::kill(launchers_[node], SIGKILL);
  ::waitpid(launchers_[node], nullptr, 0);
  launchers_[node] = -1;
}

void ChaosCluster::SignalNode(int node, int signal) {
  if (launchers_[node] > 0) ::kill(launchers_[node], signal);
}

int ChaosCluster::AwaitEnd(int node, int seconds) {
  if (launchers_[node] <= 0 ||
      !testing::AwaitProcessEnd(launchers_[node], absl::Now() + absl::Seconds(seconds))) {
    return -1;
  }
  int how = 0;
  ::waitpid(launchers_[node], &how, 0);
  launchers_[node] = -1;
  return WIFEXITED(how) ? WEXITSTATUS(how) : 128 + WTERMSIG(how);
}

bool ChaosCluster::NodeRuns(int node) { return launchers_[node] > 0 && AwaitEnd(node, 0) == -1; }

std::vector<pid_t> ChaosCluster::Launchers() const {
  std::vector<pid_t> running;
  for (const pid_t pid : launchers_) {
    if (pid > 0) running.push_back(pid);
  }
  return running;
}

std::vector<pid_t> ChaosCluster::Workers(int node) const {
  std::vector<pid_t> workers;
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator("/proc", ignored)) {
    int pid = 0;
    if (!absl::SimpleAtoi(entry.path().filename().string(), &pid)) continue;
    std::ifstream file(entry.path() / "stat");
    std::string number, name, state;
    int parent = 0;
    if (file >> number >> name >> state >> parent && parent == launchers_[node] && state != "Z" &&
        name.find("chaos_worker") != name.npos) {
      workers.push_back(pid);
    }
  }
  return workers;
}

void ChaosCluster::Cut(int node) { Runs(absl::StrCat("ip link set ", cables_[node], " down")); }
void ChaosCluster::Mend(int node) { Runs(absl::StrCat("ip link set ", cables_[node], " up")); }

int ChaosCluster::KeysLeft() const {
  const std::string out = directory_.File("keys");
  if (!Runs("etcdctl version")) return -1;
  if (std::system(absl::StrCat("ETCDCTL_API=3 etcdctl --endpoints=", etcd_[0]->address(),
                               " get --prefix chaos/ --keys-only 2>/dev/null | grep -c . > ", out)
                      .c_str()) < 0) {
    return -1;
  }
  int keys = -1;
  std::ifstream(out) >> keys;
  return keys;
}

bool ChaosCluster::AwaitNoKeys(absl::Time deadline) const {
  int out[2];
  if (::pipe2(out, O_CLOEXEC) != 0) return false;
  const std::string endpoints = "--endpoints=" + etcd_[0]->address();
  const pid_t watcher = ::fork();
  if (watcher == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    ::setenv("ETCDCTL_API", "3", 1);
    ::dup2(out[1], 1);
    // Starts at the first revision, so that it also reports a key that is removed before it listens.
    ::execlp("etcdctl", "etcdctl", endpoints.c_str(), "watch", "--prefix", "chaos/", "--rev=1", nullptr);
    ::_exit(127);
  }
  ::close(out[1]);
  bool none = false, more = true;
  while (!(none = KeysLeft() <= 0) && more && absl::Now() < deadline) {
    pollfd ready = {out[0], POLLIN, 0};
    char events[1 << 16];
    if (::poll(&ready, 1, testing::MillisUntil(deadline)) == 1) {
      more = ::read(out[0], events, sizeof(events)) > 0;
    }
  }
  ::close(out[0]);
  ::kill(watcher, SIGKILL);
  ::waitpid(watcher, nullptr, 0);
  return none;
}

std::string ChaosCluster::LastLines(int node) const {
  const std::string all = ReadFile(directory_.File(absl::StrCat("node-", node))).value_or("");
  return all.size() > 8000 ? all.substr(all.size() - 8000) : all;
}

}  // namespace tandem::collectives
