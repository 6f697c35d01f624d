// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_TESTS_PS_STORAGE_SPILL_ROCKSDB_H_
#define TANDEM_TESTS_PS_STORAGE_SPILL_ROCKSDB_H_

#include "gtest/gtest.h"

// Skips the test in a program that was built without RocksDB; TANDEM_HAS_ROCKSDB comes from the build.
#define TANDEM_SKIP_WITHOUT_ROCKSDB() \
  if (!TANDEM_HAS_ROCKSDB) GTEST_SKIP() << "built without RocksDB (librocksdb-dev)"

#endif  // TANDEM_TESTS_PS_STORAGE_SPILL_ROCKSDB_H_
