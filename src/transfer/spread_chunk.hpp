// One chunk of a spread, from storage to the memories, from those to storage, or read again from both.
#pragma once

#include <functional>
#include <list>
#include <optional>
#include <string>
#include <vector>

#include "transfer/spread_cursor.hpp"
#include "transfer/spread_work.hpp"

namespace sidestep::transfer {

enum class ChunkTask {
    move,   // in the direction of the spread
    check,  // read again from the file and from every memory, and compared
};

// The phases, each of which begins when all of the one before has ended:
//
//   move to memory   filling: file to slot, and to the memories that storage reaches; looking; emptying: slot to the others,
//                    of what all get to one memory of each group; handing on
//   move to files    opening: the files among the memories; filling: memories to slot; looking; emptying: slot to file
//   check            opening, as above; filling: file to slot; then for each lane fetching, memory to second slot; comparing
//
// Slots go back as soon as the last copy out of them has ended. Driven by one thread at a time; must be idle
// before it is destroyed.
class SpreadChunk {
public:
    // `slots`: one, two to check, none where storage reaches all memories itself. The file is open.
    SpreadChunk(SpreadWork& work, ChunkTask task, Cell cell, std::vector<std::size_t> slots);
    ~SpreadChunk();

    // Goes on as far as it can without waiting; answers whether anything moved. The error names file, tensor
    // and byte. After one nothing new is started.
    Result<bool> step();
    void stop();

    bool ended() const { return phase_ == Phase::ended; }
    // Nothing of it has come out of its slot yet.
    bool filling() const { return phase_ <= Phase::filling; }
    // Nothing is in flight.
    bool idle() const;
    const Cell& cell() const { return cell_; }

private:
    enum class Phase { waiting, opening, filling, looking, emptying, handing_on, fetching, comparing, ended };
    struct Part;
    // Where a part comes from, or goes to.
    struct Side {
        enum class Kind { file, slot, memory };
        static constexpr std::size_t of_each_run = ~std::size_t{0};

        Kind kind = Kind::memory;
        std::size_t memory = of_each_run;  // as AttachedMemory counts: the one that all runs move by
        backend::Registration* registration = nullptr;  // of a file
        Bytes slot_begin = 0;                           // in the ring
    };

    Result<void> collect();
    Result<void> add_run(Run run, const FileRange& part, Bytes& reached);
    Result<bool> step_parts();
    void count(Part& part);
    // False where it has to wait.
    Result<bool> next_phase();
    Phase begin_filling();
    Result<Phase> begin_looking();
    Phase begin_emptying();
    Side file_side(const ReadyHop& mover) const {
        return {.kind = Side::Kind::file,
                .registration = work_.files.registration(cell_.file, mover.backend)};
    }
    Side slot_side(std::size_t which = 0) const {
        return {Side::Kind::slot, work_.spread.memories.size(), nullptr, slots_[which] * work_.chunk};
    }
    // All that goes to a lane of a load goes to one memory.
    Side memory_side(std::size_t lane) const { return {.memory = work_.loads() ? lane : Side::of_each_run}; }
    const char* slot_data(std::size_t which) const { return work_.ring.at(slots_[which]); }
    template <typename Take>
    void entries(bool direct, Take take);
    std::vector<FileRange> that_wait();
    void feed(bool direct);
    Phase begin_handing_on();
    Result<void> look(std::vector<std::function<Result<void>()>> tasks);
    Phase begin_fetching();
    Result<Phase> begin_comparing();
    void give_slots_back();
    void add_part(const ReadyHop& mover, const Side& from, const Side& to, const std::vector<Run>& runs,
                  SpreadStages::Number stage, std::optional<std::size_t> lane);
    Error place_error(const Error& error, Bytes offset, const std::string& where = {}) const;

    SpreadWork& work_;
    const ChunkTask task_;
    const Cell cell_;
    std::vector<std::size_t> slots_;
    Phase phase_ = Phase::waiting;
    bool stopped_ = false;
    std::vector<Run> of_file_;          // parts of the file that are read or written as one
    std::vector<std::size_t> sources_;  // files among the memories that it moves from
    bool holds_sources_ = false;
    std::vector<Run> shared_;                 // of every memory
    std::vector<std::vector<Run>> own_;       // by lane
    std::vector<std::size_t> owners_;         // by group: the lane that gets it first
    std::list<Part> parts_;                   // in flight
    std::optional<backend::Flight> looking_;  // bytes are looked at, or compared
    std::size_t checked_ = 0;                 // the lane whose memory is fetched
};

}  // namespace sidestep::transfer
