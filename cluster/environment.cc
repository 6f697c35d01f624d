// SPDX-License-Identifier: Apache-2.0
#include "cluster/environment.h"

#include <cstdlib>
#include <limits>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "cluster/join.h"

namespace tandem::cluster {
namespace {

constexpr char kAdvice[] =
    "; start the program through `tandem run` or set RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT";

class Reader {
 public:
  explicit Reader(const Environment::Lookup& lookup) : lookup_(lookup) {}

  absl::StatusOr<int> Int(absl::string_view name, absl::optional<int> absent, int least, int most) const {
    const absl::optional<std::string> text = lookup_(name);
    if (!text || text->empty()) {
      if (absent) return *absent;
      return absl::InvalidArgumentError(absl::StrCat(name, " is not set", kAdvice));
    }
    int value = 0;
    if (!absl::SimpleAtoi(*text, &value)) {
      return absl::InvalidArgumentError(absl::StrCat(name, "='", *text, "' is not an integer", kAdvice));
    }
    if (value < least || value > most) {
      return absl::InvalidArgumentError(absl::StrCat(name, "=", value, " is out of range: it must be ",
                                                     most == std::numeric_limits<int>::max()
                                                         ? absl::StrCat("at least ", least)
                                                         : absl::StrCat("from ", least, " to ", most),
                                                     kAdvice));
    }
    return value;
  }

  // Returns the lease that a variable has in seconds.
  absl::StatusOr<absl::Duration> Lease(absl::string_view name) const {
    const absl::optional<std::string> text = lookup_(name);
    if (!text || text->empty()) return kDefaultLease;
    double seconds = 0;
    // A comparison with NaN is false.
    if (absl::SimpleAtod(*text, &seconds) && seconds >= kShortestLeaseSeconds &&
        seconds <= kLongestLeaseSeconds) {
      return absl::Seconds(seconds);
    }
    return absl::InvalidArgumentError(
        absl::StrCat(name, "='", *text, "' is no lease: it must be a number of ", "seconds from ",
                     kShortestLeaseSeconds, " to ", kLongestLeaseSeconds, "; correct or unset it"));
  }

  absl::StatusOr<std::string> Text(absl::string_view name) const {
    absl::optional<std::string> text = lookup_(name);
    if (!text || text->empty()) return absl::InvalidArgumentError(absl::StrCat(name, " is not set", kAdvice));
    return *std::move(text);
  }

 private:
  const Environment::Lookup& lookup_;
};

// The names that Open MPI's mpirun sets instead of torchrun's.
struct Alias {
  absl::string_view name, mpirun;
};
constexpr Alias kAliases[] = {{"RANK", "OMPI_COMM_WORLD_RANK"},
                              {"WORLD_SIZE", "OMPI_COMM_WORLD_SIZE"},
                              {"LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK"},
                              {"LOCAL_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE"}};

// Returns `lookup` with mpirun's names where torchrun's are not set. The two are not mixed: a launcher that
// sets RANK sets all of torchrun's names.
Environment::Lookup UnderstandingMpirun(const Environment::Lookup& lookup) {
  if (lookup("RANK") || lookup("WORLD_SIZE") || lookup("TANDEM_ROLE")) return lookup;
  return [lookup](absl::string_view name) -> absl::optional<std::string> {
    for (const Alias& alias : kAliases) {
      if (name == alias.name) return lookup(alias.mpirun);
    }
    return lookup(name);
  };
}

bool IsRoleName(absl::string_view name) {
  if (name.empty() || name.size() > 64) return false;
  for (const char c : name) {
    if (!absl::ascii_isalnum(c) && c != '-' && c != '_') return false;
  }
  return true;
}

absl::optional<std::string> ProcessVariable(absl::string_view name) {
  const char* value = std::getenv(std::string(name).c_str());
  if (value == nullptr) return absl::nullopt;
  return std::string(value);
}

}  // namespace

absl::StatusOr<Environment> Environment::FromLookup(const Lookup& variables) {
  const Lookup lookup = UnderstandingMpirun(variables);
  constexpr int kMost = std::numeric_limits<int>::max();
  const Reader read(lookup);
  Environment env;
  if (const absl::optional<std::string> role = lookup("TANDEM_ROLE"); role && !role->empty()) {
    if (!IsRoleName(*role)) {
      return absl::InvalidArgumentError(absl::StrCat(
          "TANDEM_ROLE='", *role, "' is no name of a role: at most 64 letters, digits, '-' and '_'"));
    }
    env.role = *role;
  }
  const bool server = env.role == "ps";
  env.worker = !server && (lookup("RANK").has_value() || !lookup("ROLE_RANK").has_value());
  TANDEM_ASSIGN_OR_RETURN(env.world_size, read.Int("WORLD_SIZE", absl::nullopt, 1, kMost));
  TANDEM_ASSIGN_OR_RETURN(env.num_ps, read.Int("TANDEM_NUM_PS", 0, 0, kMost / (kMostFollowers + 1)));
  TANDEM_ASSIGN_OR_RETURN(env.ps_followers, read.Int("TANDEM_PS_FOLLOWERS", 0, 0, kMostFollowers));
  if (server) {
    if (env.num_ps == 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("TANDEM_ROLE=ps needs TANDEM_NUM_PS of at least 1", kAdvice));
    }
    TANDEM_ASSIGN_OR_RETURN(env.ps_index, read.Int("TANDEM_PS_INDEX", absl::nullopt, 0, env.num_ps - 1));
    TANDEM_ASSIGN_OR_RETURN(env.ps_copy, read.Int("TANDEM_PS_COPY", 0, 0, env.ps_followers));
    env.role_world_size = env.num_ps * (env.ps_followers + 1);
    env.role_rank = env.ps_index + env.num_ps * env.ps_copy;
  } else if (env.worker) {
    TANDEM_ASSIGN_OR_RETURN(env.rank, read.Int("RANK", absl::nullopt, 0, env.world_size - 1));
    env.role_rank = env.rank;
    env.role_world_size = env.world_size;
  } else {
    TANDEM_ASSIGN_OR_RETURN(env.role_world_size, read.Int("ROLE_WORLD_SIZE", absl::nullopt, 1, kMost));
    TANDEM_ASSIGN_OR_RETURN(env.role_rank, read.Int("ROLE_RANK", absl::nullopt, 0, env.role_world_size - 1));
  }
  if (!server) {
    TANDEM_ASSIGN_OR_RETURN(env.local_world_size,
                            read.Int("LOCAL_WORLD_SIZE", env.role_world_size, 1, env.role_world_size));
    const int local_rank = env.role_rank % env.local_world_size;
    TANDEM_ASSIGN_OR_RETURN(env.local_rank, read.Int("LOCAL_RANK", local_rank, 0, env.local_world_size - 1));
  }
  TANDEM_ASSIGN_OR_RETURN(env.group_rank, read.Int("GROUP_RANK", 0, 0, kMost));
  env.store = lookup("TANDEM_STORE").value_or("");
  if (env.store.empty()) {
    TANDEM_ASSIGN_OR_RETURN(env.master_addr, read.Text("MASTER_ADDR"));
    TANDEM_ASSIGN_OR_RETURN(env.master_port, read.Int("MASTER_PORT", absl::nullopt, 0, 65535));
  } else {
    TANDEM_RETURN_IF_ERROR(Annotate(CheckStoreAddress(env.store), "TANDEM_STORE"));
    env.master_addr = lookup("MASTER_ADDR").value_or("");
    TANDEM_ASSIGN_OR_RETURN(env.master_port, read.Int("MASTER_PORT", 0, 0, 65535));
  }
  TANDEM_ASSIGN_OR_RETURN(env.restart_count, read.Int("TORCHELASTIC_RESTART_COUNT", 0, 0, kMost));
  TANDEM_ASSIGN_OR_RETURN(env.epoch, read.Int("TANDEM_EPOCH", 0, 0, kMost));
  TANDEM_ASSIGN_OR_RETURN(env.lease, read.Lease(kLeaseVariable));
  env.run_id = lookup("TANDEM_RUN_ID").value_or(lookup("TORCHELASTIC_RUN_ID").value_or(""));
  return env;
}

absl::StatusOr<Environment> Environment::FromEnv() { return FromLookup(ProcessVariable); }

bool Environment::IsLaunched(const Lookup& lookup) {
  for (absl::string_view name : {"RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "TANDEM_ROLE",
                                 "TANDEM_STORE", "OMPI_COMM_WORLD_RANK"}) {
    if (lookup(name)) return true;
  }
  return false;
}

bool Environment::IsLaunched() { return IsLaunched(ProcessVariable); }

rpc::Caller Environment::caller() const {
  rpc::Caller caller{.run_id = run_id, .epoch = epoch, .member = member(), .life = life};
  if (role == "ps") caller.shards = static_cast<uint32_t>(num_ps);
  return key.has_value() ? key->Identify(std::move(caller)) : caller;
}

std::string Environment::member() const { return absl::StrCat(role, "/", worker ? rank : role_rank); }

}  // namespace tandem::cluster
