// What most tests include, compiled once for all of them. scripts/check compiles headers and the
// library without it.

#ifndef KVXFER_TESTS_SUPPORT_PRECOMPILED_H_
#define KVXFER_TESTS_SUPPORT_PRECOMPILED_H_

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <set>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"

#endif  // KVXFER_TESTS_SUPPORT_PRECOMPILED_H_
