// Package stats has the statistics of data servers, as [drtmx/txn.DB.ServerStats]
// and [drtmx/txn.AskStats] return them. As JSON they are part of reports.
package stats

import (
	"drtmx/index"
	"drtmx/rdma"
)

// Server has the statistics of a data server: a snapshot in which the
// figures of one partition or index belong to one moment. Counts only grow
// while the server lives.
type Server struct {
	Server      int     `json:"server"`
	Address     string  `json:"address"`
	Fabric      string  `json:"fabric"` // name of the provider
	Incarnation uint64  `json:"incarnation,string"`
	Epoch       uint32  `json:"epoch"`
	StartUnix   float64 `json:"start_unix"` // seconds
	PID         int     `json:"pid"`
	CPUSeconds  float64 `json:"cpu_seconds"` // user and system time of the server's process
	// AgentSeconds of them were spent on verbs that clients would have a device perform: over tcp
	// all verbs, over shm WRITEs and atomics.
	AgentSeconds float64 `json:"agent_seconds"`
	Stopping     bool    `json:"stopping,omitempty"`
	// LeaseLeft is for how many seconds the server certainly keeps its place, if
	// another process may take it after that; nil if none may.
	LeaseLeft *float64 `json:"lease_left_s,omitempty"`

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

	Greeted      uint64 `json:"greeted"`      // connections that said hello
	Disconnected uint64 `json:"disconnected"` // connections that ended

	// Writers is how many writers of indexes clients are now, by connection, partition and index.
	// WritersOpened counts them since the start, and WritersSettled those whose access has ended
	// since: what they had begun was completed or undone. See tables.Rolex.
	Writers        int    `json:"writers"`
	WritersOpened  uint64 `json:"writers_opened"`
	WritersSettled uint64 `json:"writers_settled"`

	Refusals []rdma.Refusal `json:"refusals"` // of the endpoint, if it counts them

	// Verbs counts what the endpoint has seen: RPCs always, one-sided verbs
	// only if the provider performs them on the server's side.
	Verbs      rdma.Counters `json:"verbs"`
	Process    Process       `json:"process"`
	Partitions []Partition   `json:"partitions"`
	Indexes    []Index       `json:"indexes"`

	// Durability is where a commit is stored before it is confirmed to the client:
	// memory or disk. Log and Recovery are nil if it is memory.
	Durability string    `json:"durability"`
	Log        *Log      `json:"log,omitempty"`
	Recovery   *Recovery `json:"recovery,omitempty"`

	// Next is the first partition of the next request, 0 if the answer is
	// complete. Callers always get complete ones.
	Next int `json:"next,omitempty"`
}

// Process describes the process of a data server.
type Process struct {
	ResidentBytes uint64 `json:"resident_bytes"` // includes the resident part of regions
	HeapBytes     uint64 `json:"heap_bytes"`     // live and dead objects of Go's heap, without regions
	Goroutines    uint64 `json:"goroutines"`
	GCCycles      uint64 `json:"gc_cycles"`
}

// Log has the statistics of a data server's log and of its checkpoints. Counts
// begin when the server starts.
type Log struct {
	Bytes        uint64 `json:"bytes"`         // appended
	RowBytes     uint64 `json:"row_bytes"`     // of keys and rows that transactions have written, without bulk loads and without entries of secondary indexes
	Records      uint64 `json:"records"`       // appended
	Groups       uint64 `json:"groups"`        // of records, each written at once
	Syncs        uint64 `json:"syncs"`         // of the log's files
	PendingBytes uint64 `json:"pending_bytes"` // appended and not yet durable
	Segments     int    `json:"segments"`      // files
	Full         bool   `json:"full"`          // writes are refused until the disk has space again
	Failed       bool   `json:"failed"`        // a write or sync failed; the server accepts no writes until it is restarted

	// Copies is the number of copies of the server's data at other servers,
	// CopiesInSync that of copies with everything acknowledged. CopyLagBytes are the
	// bytes of the log that the copy farthest behind may lack.
	Copies       int    `json:"copies"`
	CopiesInSync int    `json:"copies_in_sync"`
	CopyLagBytes uint64 `json:"copy_lag_bytes"`
	// CopyList describes these copies.
	CopyList []Copy `json:"copy_list,omitempty"`
	// CopySentBytes are the bytes of the log and of checkpoints that were sent to
	// copies.
	CopySentBytes uint64 `json:"copy_sent_bytes"`

	// ReplayBytes is how much of the log a recovery would replay now.
	ReplayBytes        uint64 `json:"replay_bytes"`
	Checkpoints        uint64 `json:"checkpoints"`         // complete
	CheckpointFailures uint64 `json:"checkpoint_failures"` // given up because of an error
	// CheckpointRows is how many rows the running checkpoint has written, of
	// about CheckpointRowsTotal; both are 0 while none runs.
	CheckpointRows      uint64 `json:"checkpoint_rows"`
	CheckpointRowsTotal uint64 `json:"checkpoint_rows_total"`
}

// Copy is a copy of a data server's log, and of its checkpoint.
type Copy struct {
	Keeper   int    `json:"keeper"` // number of the data server, or of the host, that keeps it
	InSync   bool   `json:"in_sync"`
	LagBytes uint64 `json:"lag_bytes"`        // bytes of the log that it may lack
	Failed   string `json:"failed,omitempty"` // why it could not be reached last
}

// Recovery describes how a data server recovered its data when it started.
type Recovery struct {
	// Phases are in the order in which they began.
	Phases  []Phase `json:"phases"`
	Rows    uint64  `json:"rows"`     // of all indexes, afterwards
	Records uint64  `json:"records"`  // replayed from the log
	InDoubt int     `json:"in_doubt"` // transactions that were prepared and not decided
}

// Phase is a part of a recovery.
type Phase struct {
	Name    string  `json:"name"`
	Seconds float64 `json:"seconds"`
	Done    uint64  `json:"done"` // rows or records
}

// Recovering is the progress of the recovery of a data server that does not serve
// yet.
type Recovering struct {
	Phase   string  `json:"phase"`   // checkpoint, log or models
	Done    uint64  `json:"done"`    // rows, bytes of the log, or partitions
	Total   uint64  `json:"total"`   // of Done, at the end of the phase
	Seconds float64 `json:"seconds"` // since the recovery began
}

// Ratio returns the part of the phase that is done, from 0 to 1.
func (r *Recovering) Ratio() float64 {
	if r.Total == 0 {
		return 0
	}
	return min(1, float64(r.Done)/float64(r.Total))
}

// Partition has the statistics of one partition.
type Partition struct {
	Partition int    `json:"partition"`
	Loaded    bool   `json:"loaded"` // loading has ended
	Fenced    bool   `json:"fenced"` // no longer served
	Commits   uint64 `json:"commits"`
	Conflicts uint64 `json:"conflicts"`
	Prepared  int    `json:"prepared"`
	// Shipped are transactions whose keys a twin in the next partition has got, by ShippedMessages.
	Shipped         uint64 `json:"shipped,omitempty"`
	ShippedMessages uint64 `json:"shipped_messages,omitempty"`
	// ShippedWait and ShippedTime are sums over them, in seconds: until a transaction was in a message, and
	// from then until the message was answered.
	ShippedWait float64 `json:"shipped_wait_seconds,omitempty"`
	ShippedTime float64 `json:"shipped_time_seconds,omitempty"`
	Parked      uint64  `json:"parked"`       // requests that waited, for the decision of a transaction in doubt or behind others for a row
	ParkedLong  uint64  `json:"parked_long"`  // of Parked: gave up
	UsedBytes   uint64  `json:"used_bytes"`   // of its regions
	MappedBytes uint64  `json:"mapped_bytes"` // by which they have grown so far
	LimitBytes  uint64  `json:"limit_bytes"`  // to which they may grow

	// HorizonLag is how many commits are visible and not yet durable.
	HorizonLag int `json:"horizon_lag"`

	Versions       uint64 `json:"versions"`        // older versions of rows, kept for snapshots
	VersionBytes   uint64 `json:"version_bytes"`   // of them
	VersionsForced uint64 `json:"versions_forced"` // freed early, or not kept, for lack of memory
	// FloorSeconds is the age of the oldest time that snapshots can read; 0 if
	// no versions are kept.
	FloorSeconds float64 `json:"floor_seconds"`
}

// Index has the statistics of one index in one partition.
type Index struct {
	Index     int    `json:"index"` // number in the catalogue
	Name      string `json:"name"`
	Table     string `json:"table"`
	Ordered   bool   `json:"ordered"`
	Partition int    `json:"partition"`
	// GaveUp counts the fallbacks of clients: one-sided reads that they gave up
	// and sent to the server.
	GaveUp uint64 `json:"gave_up"`
	index.ServerStats
}
