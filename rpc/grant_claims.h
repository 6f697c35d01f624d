// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_RPC_GRANT_CLAIMS_H_
#define TANDEM_RPC_GRANT_CLAIMS_H_

#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "rpc/service.h"

namespace tandem::rpc {

// What a grant (security/grant.h) allows. A plain value.
struct GrantClaims {
  std::string id;    // 16 hexadecimal digits, by which it is revoked
  std::string name;  // for people: whom it is for; at most 64 bytes
  std::string role;  // one of GrantRoles()
  // Patterns of the names of tables and models, as of a shell: "user*". Empty: all of them. Methods that
  // may concern any table or model (Reach::kAnything) refuse grants with patterns.
  std::vector<std::string> tables;
  absl::Time expires;           // by the server's clock
  double calls_per_second = 0;  // 0: no limit
  double bytes_per_second = 0;  // of requests and responses; 0: no limit

  // Returns whether the role has the right.
  bool Has(Right right) const;
  // Returns whether a pattern matches `table`, or there is none.
  bool Covers(absl::string_view table) const;
  // "grant 0123456789abcdef (serving), a reader of user*".
  std::string ToString() const;
};

// Returns the names of the roles and what each may do:
//
//   reader    observe, read
//   trainer   observe, read, train
//   actor     observe, read, act
//   learner   observe, read, train, act
//   operator  observe, administer
const std::vector<std::string>& GrantRoles();

}  // namespace tandem::rpc

#endif  // TANDEM_RPC_GRANT_CLAIMS_H_
