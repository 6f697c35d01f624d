// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_TESTS_COLLECTIVES_CHAOS_CHAOS_CLUSTER_H_
#define TANDEM_TESTS_COLLECTIVES_CHAOS_CHAOS_CLUSTER_H_

// Two nodes and an etcd cluster of three members. They are network namespaces on a bridge if this machine
// allows that, otherwise plain processes, which cannot be partitioned.

#include <sys/types.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "tests/testing/processes/etcd_server.h"
#include "tests/testing/temp_dir.h"

namespace tandem::collectives {

// Not thread-safe. The destructor ends all processes that it has started.
class ChaosCluster {
 public:
  static constexpr int kNodes = 2;

  // `command` starts a node's launcher. In it, "{etcd}" is replaced by the members' addresses, "{first}" by
  // the first node's address and "{log}" by a directory of the node.
  explicit ChaosCluster(std::vector<std::string> command);
  ~ChaosCluster();

  // Returns why there is no etcd cluster; empty if there is one.
  const std::string& trouble() const { return trouble_; }
  bool has_cables() const { return has_cables_; }

  void StartNode(int node);
  // Sends SIGKILL to the launcher; its workers end with it.
  void KillNode(int node);
  void SignalNode(int node, int signal);
  // Waits for the launcher's end; returns its exit code, 128 + signal, or -1 after `seconds`.
  int AwaitEnd(int node, int seconds);
  bool NodeRuns(int node);
  // Returns the launchers that run.
  std::vector<pid_t> Launchers() const;
  std::vector<pid_t> Workers(int node) const;
  void Cut(int node);
  void Mend(int node);
  testing::EtcdServer& etcd(int member) { return *etcd_[member]; }
  // Waits until etcd holds no key of the job; also returns true if that cannot be determined (no etcdctl).
  bool AwaitNoKeys(absl::Time deadline) const;
  std::string LastLines(int node) const;

 private:
  bool MakeCables();
  // Returns the number of the job's keys in etcd; -1 if that cannot be determined.
  int KeysLeft() const;

  std::vector<std::string> command_;
  std::string trouble_;
  bool has_cables_ = false;
  std::string bridge_, outside_ = "127.0.0.1";
  std::string spaces_[kNodes], cables_[kNodes], hosts_[kNodes];
  std::vector<std::unique_ptr<testing::EtcdServer>> etcd_;
  testing::TempDir directory_;
  pid_t launchers_[kNodes] = {-1, -1};
};

}  // namespace tandem::collectives

#endif  // TANDEM_TESTS_COLLECTIVES_CHAOS_CHAOS_CLUSTER_H_
