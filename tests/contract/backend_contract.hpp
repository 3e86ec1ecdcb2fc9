// What tests/contract/*_contract_test.cpp say about a backend; backend_contract.cpp holds the tests.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include <sidestep/topology.hpp>
#include "backend/backend.hpp"

namespace sidestep::contract {

// Memory of a kind at a place. A file place has an empty path: the suite makes the files.
struct End {
    Place place;
    MemoryKind memory = MemoryKind::pageable;
};

struct BackendUnderTest {
    std::string name;  // of the tests, letters only
    std::function<std::unique_ptr<backend::Backend>()> make;
    std::function<Result<Topology>()> topology;
    // Between these ends bytes are moved, by each capability that fits them. Every capability of the
    // backend must fit one pair at least. Pairs that no capability fits must be refused.
    std::vector<std::pair<End, End>> pairs = {};
    // Whether GPU memory can be read and written by the CPU (as that of emulated GPUs can). Otherwise
    // these two do it.
    std::function<void(void* gpu_address, const void* from, Bytes bytes)> poke_gpu = {};
    std::function<void(void* to, const void* gpu_address, Bytes bytes)> peek_gpu = {};
    // Why the tests cannot run here; they are skipped then. Empty: they can.
    std::string skip = {};
    // Why capabilities between GPUs are not tested here. Empty: they are.
    std::string without_peers = {};
};

inline void PrintTo(const BackendUnderTest& backend, std::ostream* out) {
    *out << backend.name;
}

class BackendContract : public testing::TestWithParam<BackendUnderTest> {};

// "File", "Host": the name of the backend in the names of the tests.
struct NameOfBackend {
    std::string operator()(const testing::TestParamInfo<BackendUnderTest>& info) const {
        return info.param.name;
    }
};

}  // namespace sidestep::contract
