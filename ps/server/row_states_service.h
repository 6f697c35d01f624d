// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_PS_SERVER_ROW_STATES_SERVICE_H_
#define TANDEM_PS_SERVER_ROW_STATES_SERVICE_H_

#include "absl/status/statusor.h"
#include "ps/server/request_handler.h"
#include "ps/server/table/table_registry.h"
#include "tandem/v1/parameter_server.pb.h"

namespace tandem::ps {

namespace v1 = ::tandem::v1;

// Answers the calls that move whole rows, with their optimizer state: which rows are frequently updated,
// reading rows to replicate them on workers, writing them back, and scanning a table. Thread-safe. Calls
// block as pulls do: for locks, and for the disk in tables with `spill`.
class RowStatesService {
 public:
  // Largest size of the values in one message, in bytes. Clients send several messages for more rows.
  static constexpr size_t kMaxValueBytes = size_t{64} << 20;

  // `tables` and `requests` must outlive the service.
  RowStatesService(const TableRegistry* tables, RequestHandler* requests)
      : tables_(*tables), requests_(*requests) {}

  // NotFound: unknown table. InvalidArgument: a NaN or negative threshold.
  absl::StatusOr<v1::FrequentlyUpdatedRowsResponse> Frequent(
      const v1::FrequentlyUpdatedRowsRequest& request) const;
  // NotFound: unknown table. FailedPrecondition: an id of another server. InvalidArgument: an id outside a
  // DENSE table. ResourceExhausted: the values exceed kMaxValueBytes.
  absl::StatusOr<v1::ReadRowStatesResponse> Read(const v1::ReadRowStatesRequest& request) const;
  // The errors of Read, those of a push's fence, and InvalidArgument if sizes do not fit the table or a value
  // is not finite; nothing has changed then. A row that a pull finds in a cache is newer afterwards. Must not
  // run at the same time as a checkpoint.
  absl::StatusOr<v1::WriteRowStatesResponse> Write(const v1::WriteRowStatesRequest& request) const;
  // Recovery: repeats a write that the log holds at `log_position`, for the rows that do not contain it.
  absl::Status ReplayWrite(const v1::WriteRowStatesRequest& request, uint64_t log_position);
  // Returns rows of one bucket, memory and disk alike, at most as many as fit kMaxValueBytes. Holds the
  // bucket's lock for reading. NotFound: unknown table. InvalidArgument: there is no such bucket.
  // FailedPrecondition: a bucket of another server.
  absl::StatusOr<v1::ScanRowsResponse> Scan(const v1::ScanRowsRequest& request) const;

 private:
  const TableRegistry& tables_;
  RequestHandler& requests_;
};

}  // namespace tandem::ps

#endif  // TANDEM_PS_SERVER_ROW_STATES_SERVICE_H_
