"""Prints a trace as Perfetto's own descriptors have it: a line of JSON for each event, with interned names replaced.

Fails where Perfetto's trace processor would count an error: an unknown name or track, a slice that ends without beginning.
"""
import json
import sys

from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as proto

trace = proto.Trace()
trace.ParseFromString(open(sys.argv[1], "rb").read())

names = {"category": {}, "event": {}, "annotation": {}, "text": {}}
threads, processes, counters = {}, {}, {}
defaults = None
events = []
clocks = None


def value(annotation):
    kind = annotation.WhichOneof("value")
    if kind == "string_value_iid":
        return names["text"][annotation.string_value_iid]
    if kind is None:
        return [value(one) for one in annotation.array_values]
    return getattr(annotation, kind)


for number, packet in enumerate(trace.packet):
    assert packet.trusted_packet_sequence_id == 1
    if packet.HasField("clock_snapshot"):
        clocks = {clock.clock_id: clock.timestamp for clock in packet.clock_snapshot.clocks}
        assert packet.clock_snapshot.primary_trace_clock == proto.BUILTIN_CLOCK_MONOTONIC
    if packet.sequence_flags & proto.TracePacket.SEQ_INCREMENTAL_STATE_CLEARED:
        assert defaults is None
        defaults = packet.trace_packet_defaults.timestamp_clock_id
    interned = packet.interned_data
    for table, entries in [
        ("category", interned.event_categories),
        ("event", interned.event_names),
        ("annotation", interned.debug_annotation_names),
    ]:
        names[table].update({entry.iid: entry.name for entry in entries})
    names["text"].update({entry.iid: entry.str.decode() for entry in interned.debug_annotation_string_values})
    if packet.HasField("track_descriptor"):
        track = packet.track_descriptor
        if track.HasField("thread"):
            threads[track.uuid] = [track.thread.pid, track.thread.tid, track.thread.thread_name]
        elif track.HasField("process"):
            processes[track.process.pid] = track.process.process_name
        elif track.HasField("counter"):
            counters[track.uuid] = track.name
    if packet.HasField("track_event"):
        assert packet.sequence_flags & proto.TracePacket.SEQ_NEEDS_INCREMENTAL_STATE
        assert defaults == proto.BUILTIN_CLOCK_MONOTONIC
        event = packet.track_event
        events.append((packet.timestamp, number, event, {names["annotation"][a.name_iid]: value(a) for a in event.debug_annotations}))

# As trace processor does: sorted by time, and within a time by the place in the file.
stacks, lines = {}, []
for timestamp, _, event, fields in sorted(events, key=lambda entry: entry[:2]):
    line = {"time": timestamp}
    if event.type == proto.TrackEvent.TYPE_COUNTER:
        line.update(counter=counters[event.track_uuid], value=event.counter_value)
    elif event.type == proto.TrackEvent.TYPE_SLICE_END:
        begin = stacks[event.track_uuid].pop()
        begin["duration"] = timestamp - begin["time"]
        continue
    else:
        [category] = event.category_iids
        pid, tid, comm = threads[event.track_uuid]
        line.update(event=names["category"][category] + ":" + names["event"][event.name_iid])
        line.update(pid=pid, tid=tid, comm=comm, process=processes[pid], fields=fields)
        if event.type == proto.TrackEvent.TYPE_SLICE_BEGIN:
            stacks.setdefault(event.track_uuid, []).append(line)
        else:
            assert event.type == proto.TrackEvent.TYPE_INSTANT
    lines.append(line)

assert not any(stacks.values()), "a slice has no end"
print(json.dumps({"real": clocks[proto.BUILTIN_CLOCK_REALTIME], "monotonic": clocks[proto.BUILTIN_CLOCK_MONOTONIC]}))
for line in lines:
    print(json.dumps(line))
