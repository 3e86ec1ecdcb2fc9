// What a node tells of itself, over the public API.
#include <sidestep/node.hpp>

#include "tests/network/nodes.hpp"

namespace sidestep {
namespace {

using test::Nodes;

class Node : public Nodes {};

TEST_F(Node, ItsTopologyComesWhole) {
    const auto told = topology_of(*here, "n");
    ASSERT_TRUE(told) << told.error().to_string();
    EXPECT_EQ(told->name(), "n");
    EXPECT_EQ(told->devices(), machine.topology().devices());
    EXPECT_EQ(told->links(), machine.topology().links());
    EXPECT_TRUE(told->emulated());
    EXPECT_EQ(told->parts().peers, machine.topology().parts().peers);
    EXPECT_EQ(told->parts().properties, machine.topology().parts().properties);
}

TEST_F(Node, ATopologyOfManyPartsComesWhole) {
    auto cluster = Context::open({"dgx-h100*16"});
    ASSERT_TRUE(cluster) << cluster.error().to_string();
    ServeOptions options;
    options.listen = "127.0.0.1:0";
    options.key_file = path("key");
    const auto served = cluster->serve(options);
    ASSERT_TRUE(served) << served.error().to_string();
    ASSERT_TRUE(here->connect("many", served->addresses().front()));
    const auto told = topology_of(*here, "many");
    ASSERT_TRUE(told) << told.error().to_string();
    EXPECT_GT(told->to_json().size(), std::size_t{200'000});
    EXPECT_EQ(told->devices(), cluster->topology().devices());
    EXPECT_EQ(told->links(), cluster->topology().links());
}

// What the reader of a machine could not read names its files.
TEST_F(Node, NotesAreNotTold) {
    Topology::Parts parts = machine.topology().parts();
    parts.notes = {"cannot read /secret/path"};
    test::put(path("topology.json"), Topology::create(parts)->to_json());
    auto noted = Context::open({path("topology.json")});
    ASSERT_TRUE(noted) << noted.error().to_string();
    ASSERT_FALSE(noted->topology().notes().empty());
    ServeOptions options;
    options.listen = "127.0.0.1:0";
    options.key_file = path("key");
    const auto served = noted->serve(options);
    ASSERT_TRUE(served) << served.error().to_string();
    ASSERT_TRUE(here->connect("noted", served->addresses().front()));
    const auto told = topology_of(*here, "noted");
    ASSERT_TRUE(told) << told.error().to_string();
    EXPECT_TRUE(told->notes().empty());
}

TEST_F(Node, ItNeedsNothingButTheKey) {
    serve("");
    here = std::make_unique<Context>(*client());
    EXPECT_TRUE(topology_of(*here, "n"));
    test::put(path("other"), std::string(64, 'a') + "\n");
    std::filesystem::permissions(path("other"), std::filesystem::perms::owner_read);
    const auto stranger = client(path("other"));
    ASSERT_TRUE(stranger) << stranger.error().to_string();
    EXPECT_EQ(topology_of(*stranger, "n").error().code, ErrorCode::permission_denied);
    EXPECT_EQ(look_at_node(*stranger, "n").error().code, ErrorCode::permission_denied);
}

TEST_F(Node, BothEndsSayWhatTheyAre) {
    const auto look = look_at_node(*here, "n");
    ASSERT_TRUE(look) << look.error().to_string();
    EXPECT_EQ(look->node, "n");
    EXPECT_EQ(look->there.at("node"), "the-node");
    EXPECT_EQ(look->there.at("gpus"), "8");
    // One process, one machine, one connection.
    for (const char* name :
         {"software", "protocols", "kernel", "interface", "mtu", "memlock", "engine.tcp"}) {
        ASSERT_TRUE(look->here.contains(name)) << name;
        EXPECT_EQ(look->here.at(name), look->there.at(name)) << name;
    }
    EXPECT_EQ(look->here.at("interface"), "lo");
    EXPECT_EQ(look->here.at("engine.tcp"), "yes");
    EXPECT_EQ(look->engine, "tcp");
    ASSERT_EQ(look->addresses.size(), 1u);
    EXPECT_EQ(look->addresses.front().address, address);
    EXPECT_EQ(look->addresses.front().refusal, "");
    // One clock: what is found lies within its own bound.
    ASSERT_TRUE(look->clock);
    EXPECT_LE(std::chrono::abs(look->clock->ahead), look->clock->bound);
}

TEST_F(Node, AnAddressThatIsNotReachedIsTold) {
    here->connect("two", address + ",127.0.0.1:1").ok();
    const auto look = look_at_node(*here, "two");
    ASSERT_TRUE(look) << look.error().to_string();
    ASSERT_EQ(look->addresses.size(), 2u);
    EXPECT_EQ(look->addresses[0].refusal, "");
    EXPECT_NE(look->addresses[1].refusal, "");
}

TEST_F(Node, NamesThatAreNoneAreErrors) {
    EXPECT_EQ(topology_of(*here, "").error().code, ErrorCode::invalid_argument);
    EXPECT_EQ(topology_of(*here, "a b").error().code, ErrorCode::invalid_argument);
    serving.reset();
    EXPECT_EQ(topology_of(*here, "m").error().code, ErrorCode::not_found);
}

}  // namespace
}  // namespace sidestep
