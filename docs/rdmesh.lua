-- Wireshark dissector of what rdmesh adds to RoCEv2, and of the seal of its tunnel (docs/internals/wire.md).
--
--   wireshark -X lua_script:rdmesh.lua capture.pcap
--   tshark -X lua_script:rdmesh.lua -r capture.pcap -Y rdmesh.ack
--
-- It adds a tree `rdmesh` to packets that Wireshark's own dissectors have taken apart. SPDX-License-Identifier: Apache-2.0 OR MIT

local rdmesh = Proto("rdmesh", "rdmesh")

local f = rdmesh.fields
-- Reserved bits of the base transport header, behind the acknowledge-request bit.
f.selective = ProtoField.bool("rdmesh.takes_selective", "Takes selective acknowledgements", 8, nil, 0x40)
f.repeated = ProtoField.bool("rdmesh.repeated", "Sent before", 8, nil, 0x20)
f.asks = ProtoField.bool("rdmesh.has_telemetry", "Telemetry", 8, nil, 0x10)
-- Selective acknowledgements: opcode 0xdc.
f.ack = ProtoField.none("rdmesh.ack", "Selective acknowledgement")
f.expected = ProtoField.uint32("rdmesh.ack.expected", "Next PSN that the responder executes")
f.duplicates = ProtoField.uint32("rdmesh.ack.duplicates", "Duplicates")
f.repeats = ProtoField.uint32("rdmesh.ack.repeats", "Packets marked as sent before")
f.held = ProtoField.uint32("rdmesh.ack.held", "Packets behind a gap")
f.ranges = ProtoField.string("rdmesh.ack.ranges", "PSNs behind a gap")
f.telemetry = ProtoField.none("rdmesh.telemetry", "Telemetry")
f.at = ProtoField.uint32("rdmesh.telemetry.at", "Time (ns, modulo 2^32)")
f.carried = ProtoField.uint32("rdmesh.telemetry.carried", "Carried by the link (units of 64 bytes, modulo 2^32)")
f.waited = ProtoField.uint32("rdmesh.telemetry.waited", "Waited (ns)")
f.rate = ProtoField.uint32("rdmesh.telemetry.rate", "Rate of the link (Mb/s)")
-- Probes: management datagrams of the vendor class of ibping.
f.probe = ProtoField.none("rdmesh.probe", "Probe")
f.tid = ProtoField.uint64("rdmesh.probe.tid", "Transaction", base.HEX)
f.is_answer = ProtoField.bool("rdmesh.probe.answer", "Answer")
f.held_for = ProtoField.uint32("rdmesh.probe.held", "Held by the other router (ns)")
f.waited_for = ProtoField.uint32("rdmesh.probe.waited", "Waited in its socket (ns)")
f.is_here = ProtoField.bool("rdmesh.probe.endpoint", "The address is an endpoint's there", 8, nil, 0x01)
f.is_allowed = ProtoField.bool("rdmesh.probe.allowed", "Security groups let the sender connect", 8, nil, 0x02)
f.version = ProtoField.string("rdmesh.probe.version", "Version of the other router")
-- The seal: an option of Geneve.
f.seal = ProtoField.none("rdmesh.seal", "Seal")
f.session = ProtoField.uint64("rdmesh.seal.session", "Session", base.HEX)
f.sequence = ProtoField.uint64("rdmesh.seal.sequence", "Number")
f.tag = ProtoField.bytes("rdmesh.seal.tag", "Tag")

local SELECTIVE_ACK = 0xdc
local BTH_LEN, DETH_LEN = 12, 8
local TELEMETRY_LEN = 16
-- Of a probe's 256 bytes: as many as a capture that cuts packets short has of it.
local PROBE_HEAD, PROBE_CLASS = 52, 0x32
local GENEVE_LEN, OPTION_LEN, SEAL_LEN = 8, 4, 32
local SEAL_CLASS, SEAL_TYPE = 0xff6d, 0x81

local opcodes = Field.new("infiniband.bth.opcode")
local geneve_options = Field.new("geneve.option.type")

-- The PSNs of a bitmap whose words begin at `at`: how many there are, and as text.
local function held(tvb, at, last, expected)
    local count, ranges, first, previous = 0, {}, nil, nil
    local function close()
        if first then table.insert(ranges, first == previous and tostring(first) or first .. "-" .. previous) end
    end
    local word = 0
    while at + 8 <= last do
        local bits = tvb(at, 8):uint64()
        for bit = 0, 63 do
            if bits:rshift(bit):band(1) == UInt64(1) then
                local psn = (expected + 64 * word + bit) % 0x1000000
                count = count + 1
                if previous and psn == previous + 1 then
                    previous = psn
                else
                    close()
                    first, previous = psn, psn
                end
            end
        end
        at, word = at + 8, word + 1
    end
    close()
    return count, table.concat(ranges, ", ")
end

local function dissect_telemetry(tvb, at, tree)
    local telemetry = tree:add(f.telemetry, tvb(at, TELEMETRY_LEN))
    for index, field in ipairs({ f.at, f.carried, f.waited, f.rate }) do
        telemetry:add(field, tvb(at + 4 * (index - 1), 4))
    end
    return at + TELEMETRY_LEN
end

local function dissect_ack(tvb, bth, last, has_telemetry, tree)
    local expected = tvb(bth + 9, 3):uint()
    local at = bth + BTH_LEN
    if has_telemetry then
        if at + TELEMETRY_LEN > last then return end
        at = dissect_telemetry(tvb, at, tree)
    end
    if at + 8 > last then return end
    local ack = tree:add(f.ack, tvb(bth, last - bth))
    ack:add(f.expected, tvb(bth + 9, 3), expected)
    ack:add(f.duplicates, tvb(at, 4))
    ack:add(f.repeats, tvb(at + 4, 4))
    local count, ranges = held(tvb, at + 8, last, expected)
    ack:add(f.held, count):set_generated()
    ack:add(f.ranges, ranges):set_generated()
    return string.format("selective ACK %d, %d behind a gap", expected, count)
end

local function dissect_probe(tvb, mad, tree)
    local is_answer = tvb(mad + 3, 1):uint() >= 0x80
    local probe = tree:add(f.probe, tvb(mad, PROBE_HEAD))
    probe:add(f.tid, tvb(mad + 8, 8))
    probe:add(f.is_answer, is_answer):set_generated()
    if not is_answer then return "probe" end
    probe:add(f.held_for, tvb(mad + 40, 4))
    if tvb(mad + 44, 4):uint() ~= 0xffffffff then probe:add(f.waited_for, tvb(mad + 44, 4)) end
    probe:add(f.is_here, tvb(mad + 48, 1))
    probe:add(f.is_allowed, tvb(mad + 48, 1))
    local numbers = { tvb(mad + 49, 1):uint(), tvb(mad + 50, 1):uint(), tvb(mad + 51, 1):uint() }
    probe:add(f.version, tvb(mad + 49, 3), table.concat(numbers, "."))
    return "answer to a probe"
end

local function is_probe(tvb, mad)
    return mad + PROBE_HEAD <= tvb:len() and tvb(mad + 1, 1):uint() == PROBE_CLASS and tvb(mad + 37, 3):uint() == 0x001405
end

local function dissect_roce(tvb, bth, pinfo, tree)
    -- What follows the base transport header ends with an invariant CRC of 4 bytes.
    local last = tvb:len() - 4
    if bth + BTH_LEN > last then return end
    local flags = tvb(bth + 8, 1)
    tree:add(f.selective, flags)
    tree:add(f.repeated, flags)
    tree:add(f.asks, flags)
    local says
    if tvb(bth, 1):uint() == SELECTIVE_ACK then
        says = dissect_ack(tvb, bth, last, flags:bitfield(3, 1) == 1, tree)
    elseif is_probe(tvb, bth + BTH_LEN + DETH_LEN) then
        says = dissect_probe(tvb, bth + BTH_LEN + DETH_LEN, tree)
    end
    if says then pinfo.cols.info:append(" [rdmesh: " .. says .. "]") end
end

-- The seal is the only option of a packet.
local function dissect_seal(tvb, option, tree)
    local at = option + OPTION_LEN
    if option < 0 or at + SEAL_LEN > tvb:len() then return end
    if tvb(option, 2):uint() ~= SEAL_CLASS or tvb(option + 2, 1):uint() ~= SEAL_TYPE then return end
    local seal = tree:add(f.seal, tvb(option, OPTION_LEN + SEAL_LEN))
    seal:add(f.session, tvb(at, 8))
    seal:add(f.sequence, tvb(at + 8, 8))
    seal:add(f.tag, tvb(at + 16, 16))
end

function rdmesh.dissector(tvb, pinfo, root)
    local opcode, option = opcodes(), geneve_options()
    if not opcode and not option then return end
    local tree = root:add(rdmesh, tvb())
    if option then dissect_seal(tvb, option.offset - 2, tree) end
    -- A capture may have cut the packet short, and a packet behind the tunnel may be reassembled elsewhere.
    if opcode and opcode.source == tvb then dissect_roce(tvb, opcode.offset, pinfo, tree) end
end

register_postdissector(rdmesh, true)
