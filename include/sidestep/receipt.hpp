// What a finished copy did.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include <sidestep/api.h>
#include <sidestep/route.hpp>
#include <sidestep/stage.hpp>
#include <sidestep/storage_bytes.hpp>

namespace sidestep {

// Plain data, cheap to copy.
struct SIDESTEP_API Receipt {
    Bytes bytes = 0;
    double seconds = 0;                  // from submission until the end was seen by poll(), wait() or the
                                         // library's own thread; verification left out
    std::shared_ptr<const Route> route;  // the route that carried the bytes, never null after a success
    std::vector<Bytes> lane_bytes;  // by lane of `route`. With holes of a file, and what went another way
                                    // before, it sums to `bytes`. Of a batch: of the route that carried most
    std::vector<std::string>
        lane_failures;      // in the order of route->lanes: why one stopped carrying bytes, which
                            // the others took over; empty strings where none did
    bool verified = false;  // both ends were hashed and are equal
    double verify_seconds = 0;
    StorageBytes storage;            // of the files among its ends
    std::vector<Stage> stages;       // of a load or a save, in the order in which bytes pass them; else empty
    std::vector<std::string> notes;  // anything that went otherwise than asked, in plain sentences

    double gb_per_s() const { return seconds > 0 ? static_cast<double>(bytes) / seconds / 1e9 : 0; }
    // Rate as a share of the expected one, 0 where nothing was expected or the machine is emulated.
    double share_of_expected() const;

    // One line: bytes, seconds, rate, path, share of the expected rate.
    std::string summary() const;
    // The path taken, hop by hop, what each lane carried, and the better paths refused, with reasons.
    std::string explain() const;
    // The object documented in docs/json.md.
    std::string to_json() const;
};

}  // namespace sidestep
