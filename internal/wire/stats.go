package wire

import (
	"encoding/json"
	"fmt"

	"drtmx/index"
	"drtmx/rdma"
)

// ServerStats has the statistics of a data server: a snapshot in which the
// figures of one partition or index belong to one moment. Counts only grow
// while the server lives. Encoded as JSON, it is the answer to OpStats.
type ServerStats struct {
	Server      int     `json:"server"`
	Address     string  `json:"address"`
	Fabric      string  `json:"fabric"` // name of the provider
	Incarnation uint64  `json:"incarnation,string"`
	Epoch       uint32  `json:"epoch"`
	StartUnix   float64 `json:"start_unix"` // seconds
	PID         int     `json:"pid"`
	CPUSeconds  float64 `json:"cpu_seconds"` // user and system time of the server's process
	Stopping    bool    `json:"stopping,omitempty"`

	RegionBytes uint64 `json:"region_bytes"` // used, of all partitions
	Commits     uint64 `json:"commits"`
	Conflicts   uint64 `json:"conflicts"`
	Calls       uint64 `json:"calls"`
	SlowCalls   uint64 `json:"slow_calls"` // of Calls: left their home partition
	Lookups     uint64 `json:"lookups"`    // answered by RPC
	Scans       uint64 `json:"scans"`      // answered by RPC
	Distributed uint64 `json:"distributed"`
	Handovers   uint64 `json:"handovers"` // transactions decided here for the server that handed them over
	Prepared    int    `json:"prepared"`  // in doubt now
	Outcomes    int    `json:"outcomes"`  // sessions whose last answer is kept
	// OutcomeBytes is the total size of those answers.
	OutcomeBytes int    `json:"outcome_bytes"`
	RepliesLost  uint64 `json:"replies_lost"` // answers that could not be sent
	Decisions    int    `json:"decisions"`    // commits kept until all participants know them

	Greeted      uint64         `json:"greeted"`      // connections that said hello
	Disconnected uint64         `json:"disconnected"` // connections that ended
	Refusals     []rdma.Refusal `json:"refusals"`     // of the endpoint, if it counts them

	// Verbs counts what the endpoint has seen: RPCs always, one-sided verbs
	// only if the provider performs them on the server's side.
	Verbs      rdma.Counters    `json:"verbs"`
	Process    ProcessStats     `json:"process"`
	Partitions []PartitionStats `json:"partitions"`
	Indexes    []IndexStats     `json:"indexes"`

	// Next is the first partition of the next request, 0 if the answer is
	// complete: see AppendStatsRequest.
	Next int `json:"next,omitempty"`
}

// ProcessStats describe the process of a data server.
type ProcessStats struct {
	ResidentBytes uint64 `json:"resident_bytes"` // includes the resident part of regions
	HeapBytes     uint64 `json:"heap_bytes"`     // live and dead objects of Go's heap, without regions
	Goroutines    uint64 `json:"goroutines"`
	GCCycles      uint64 `json:"gc_cycles"`
}

// PartitionStats are the statistics of one partition.
type PartitionStats struct {
	Partition   int    `json:"partition"`
	Loaded      bool   `json:"loaded"` // loading has ended
	Fenced      bool   `json:"fenced"` // no longer served
	Commits     uint64 `json:"commits"`
	Conflicts   uint64 `json:"conflicts"`
	Prepared    int    `json:"prepared"`
	Parked      uint64 `json:"parked"`       // requests that waited for the decision of a transaction in doubt
	ParkedLong  uint64 `json:"parked_long"`  // of Parked: gave up
	UsedBytes   uint64 `json:"used_bytes"`   // of the region
	MappedBytes uint64 `json:"mapped_bytes"` // by which the region has grown so far
	LimitBytes  uint64 `json:"limit_bytes"`  // to which it may grow
}

// IndexStats are the statistics of one index in one partition.
type IndexStats struct {
	Index     int    `json:"index"`
	Name      string `json:"name"`
	Table     string `json:"table"`
	Ordered   bool   `json:"ordered"`
	Partition int    `json:"partition"`
	// GaveUp counts the fallbacks of clients: one-sided reads that they gave up
	// and sent to the server.
	GaveUp uint64 `json:"gave_up"`
	index.ServerStats
}

// AppendStatsRequest appends a request for the statistics of the partitions
// from the given one on. An answer has as many as fit a message; its Next is
// the first partition of the next request.
func AppendStatsRequest(b []byte, from int) []byte {
	return le.AppendUint16(append(b, byte(OpStats)), uint16(from))
}

// DecodeStats decodes an answer to AppendStatsRequest. It adds the partitions
// to those of earlier answers, and replaces the figures of the server.
func DecodeStats(resp []byte, into *ServerStats) error {
	switch {
	case len(resp) == 0:
		return fmt.Errorf("%w: statistics: empty answer", ErrMessage)
	case Code(resp[0]) != OK:
		return fmt.Errorf("%w: statistics: %s", ErrMessage, resp[1:])
	}
	var st ServerStats
	if err := json.Unmarshal(resp[1:], &st); err != nil {
		return fmt.Errorf("%w: statistics: %v", ErrMessage, err)
	}
	if st.Next < 0 || st.Next > MaxParts || st.Next != 0 && st.Next <= into.Next {
		return fmt.Errorf("%w: statistics: partition %d follows %d", ErrMessage, st.Next, into.Next)
	}
	st.Partitions = append(into.Partitions, st.Partitions...)
	st.Indexes = append(into.Indexes, st.Indexes...)
	*into = st
	return nil
}
