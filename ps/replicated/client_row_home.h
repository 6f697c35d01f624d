// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_PS_REPLICATED_CLIENT_ROW_HOME_H_
#define TANDEM_PS_REPLICATED_CLIENT_ROW_HOME_H_

#include <map>
#include <string>
#include <vector>

#include "ps/client/client.h"
#include "ps/replicated/replicated_tables.h"

namespace tandem::ps {

// The servers behind a client, which outlives the object.
class ClientRowHome : public RowHome {
 public:
  explicit ClientRowHome(Client* client) : client_(client) {}
  absl::StatusOr<std::vector<HotRow>> FindHot(const std::string& table, double min_staleness,
                                              uint64_t limit) override;
  absl::StatusOr<double> Delay(const std::string& table) override;
  absl::StatusOr<MovedRows> Read(const std::string& table, absl::Span<const uint64_t> ids) override;
  absl::Status Write(const std::map<std::string, MovedRows>& rows) override;
  absl::Status Flush(const std::string& table) override { return client_->Flush(table); }
  absl::Status SetMode(const std::string& table, const v1::UpdateMode& mode) override {
    return client_->SetUpdateMode(table, mode);
  }

 private:
  Client* const client_;
};

}  // namespace tandem::ps

#endif  // TANDEM_PS_REPLICATED_CLIENT_ROW_HOME_H_
