// Collectives as tasks of every rank, in the simplest way: only what these tests need, apart from
// src/collective.
#pragma once

#include <functional>

#include "crew.hpp"

namespace sidestep::collective_seat {

// How an operation is carried.
struct How {
    protocol::Shape shape = protocol::Shape::packets;
    bool staged = false;  // no memory but the arenas counts as mapped
    unsigned blocks = 1;
    unsigned send_shift = 0;  // bytes that buffers lie off a multiple of 16
    unsigned recv_shift = 0;
    bool in_place = false;
};
std::string to_string(const How& how);
const char* name_of(protocol::Shape shape);
// What jobs of other kinds are not made for.
inline bool is_for_all_reduce_alone(const How& how) {
    return how.shape == protocol::Shape::packets_two_phase || how.shape == protocol::Shape::coalesced;
}
// Every way to carry an all-reduce of such elements: both kinds of packets, lamport where they have it,
// lines, slices, slices through the arenas, pushed slices, a ring. Ranks wait for each other, so what runs on
// one GPU has to fit there at a time: thread blocks (an H200 takes 132 large ones), and streams that wait
// (they share 8 queues by default). False, and said so, where ranks share a GPU and that is too much.
bool has_room(const Crew& crew, const How& how);
std::vector<How> all_ways(protocol::Element element);

struct Reduced {
    protocol::Element element = protocol::Element::f32;
    protocol::Combine combine = protocol::Combine::sum;
    std::vector<double> scales;  // by rank, of scaled_sum
    bool device_scale = false;   // read when the task runs
};

// Runs an operation on buffers with guards around them, which have to stay as they are; so has a send buffer.
class Buffers {
public:
    Buffers(Crew& crew, const How& how) : crew_(crew), how_(how) {}

    // Puts the inputs of all ranks into place, and poison into the outputs. In place, output r begins at
    // `places[r]` in the input, or the input at `places[r]` in the output, whichever is larger. The inputs are looked at again by outputs().
    void fill(const std::vector<Values>& inputs, std::uint64_t output_bytes,
              const std::vector<std::uint64_t>& places);
    // A task with the two buffers and their tokens.
    protocol::CollectiveTask task(unsigned rank) const;
    // Every rank's output, after run(). Checks the guards.
    std::vector<Values> outputs();

private:
    struct Range {
        std::size_t offset = 0;
        std::size_t bytes = 0;
    };
    void put_guards(unsigned rank, const Range& range);
    void check_guards(unsigned rank, const Range& range);

    Crew& crew_;
    const How how_;
    const std::vector<Values>* inputs_ = nullptr;
    std::vector<Range> sends_;
    std::vector<Range> recvs_;
};

// Slice r of `count` elements, cut as evenly as they come.
protocol::Slice even_slice(std::uint64_t count, unsigned rank, unsigned ranks);

// inputs[r] is what rank r gives; answers what each rank got.
std::vector<Values> all_reduce(Crew& crew, const How& how, const Reduced& reduced,
                               const std::vector<Values>& inputs);
std::vector<Values> reduce_scatter(Crew& crew, const How& how, const Reduced& reduced,
                                   const std::vector<Values>& inputs);
std::vector<Values> all_gather(Crew& crew, const How& how, const std::vector<Values>& inputs);
std::vector<Values> broadcast(Crew& crew, const How& how, unsigned root, const Values& input);
// Answers what the root got.
Values reduce(Crew& crew, const How& how, const Reduced& reduced, unsigned root,
              const std::vector<Values>& inputs);
// By packets: inputs[r] holds a block of the same size for every rank.
std::vector<Values> all_to_all(Crew& crew, const How& how, const std::vector<Values>& inputs);

// Two tasks that are not part of one operation differ in this.
std::uint32_t signature_of(const Reduced& reduced, std::uint64_t count);

}  // namespace sidestep::collective_seat
