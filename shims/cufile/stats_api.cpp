// The exported functions about statistics.
#include "shims/cufile/driver.hpp"
#include "shims/cufile/stats.hpp"

using namespace sidestep::cufile;

namespace {

// What needs an open driver, which none of these opens.
template <typename Work>
CUfileError_t answer_open(const char* call, Work&& work) {
    return answer(call, [&]() -> Refusal {
        if (!Driver::get().is_open())
            return refusal(CU_FILE_DRIVER_NOT_INITIALIZED, "the driver is not open");
        return work();
    });
}

template <typename Stats>
CUfileError_t fill(const char* call, Stats* stats) {
    return answer_open(call, [&]() -> Refusal {
        if (stats == nullptr) return refusal(CU_FILE_INVALID_VALUE, "the statistics' address is null");
        return Statistics::get().fill(*stats);
    });
}

}  // namespace

extern "C" {

CUfileError_t cuFileSetStatsLevel(int level) {
    return answer("cuFileSetStatsLevel", [&] { return Statistics::get().set_level(level); });
}

CUfileError_t cuFileGetStatsLevel(int* level) {
    return answer("cuFileGetStatsLevel", [&]() -> Refusal {
        if (level == nullptr) return refusal(CU_FILE_INVALID_VALUE, "the level's address is null");
        *level = Statistics::get().level();
        return {};
    });
}

CUfileError_t cuFileStatsStart(void) {
    return answer_open("cuFileStatsStart", []() -> Refusal {
        Statistics::get().start();
        return {};
    });
}

CUfileError_t cuFileStatsStop(void) {
    return answer_open("cuFileStatsStop", []() -> Refusal {
        Statistics::get().stop();
        return {};
    });
}

CUfileError_t cuFileStatsReset(void) {
    return answer_open("cuFileStatsReset", []() -> Refusal {
        Statistics::get().reset();
        return {};
    });
}

CUfileError_t cuFileGetStatsL1(CUfileStatsLevel1_t* stats) {
    return fill("cuFileGetStatsL1", stats);
}
CUfileError_t cuFileGetStatsL2(CUfileStatsLevel2_t* stats) {
    return fill("cuFileGetStatsL2", stats);
}
CUfileError_t cuFileGetStatsL3(CUfileStatsLevel3_t* stats) {
    return fill("cuFileGetStatsL3", stats);
}
}
