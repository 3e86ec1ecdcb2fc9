// The closing table of a load. Pure.
#pragma once

#include <string>
#include <vector>

#include <sidestep/load.hpp>

namespace sidestep::checkpoint {

struct ReportFacts {
    std::vector<Place> places;
    Layout layout = Layout::replicate;
    std::size_t tensors = 0;
    Bytes file_bytes = 0;
    PageCache page_cache = PageCache::automatic;  // as asked for
    Bytes max_staging = 0;                        // for each place
};

// The stage that the others waited for longest, verification left out; null where none held anything up.
const Stage* limiting_stage(const Receipt& receipt);

// One sentence: what would make the load faster, from what the receipt says of it.
std::string advice(const ReportFacts& facts, const Receipt& receipt);

// Lines, each ended with a newline: the whole, bytes by path, the stages, the limit, the advice, the notes.
std::string report_of(const ReportFacts& facts, const Receipt& receipt);

}  // namespace sidestep::checkpoint
