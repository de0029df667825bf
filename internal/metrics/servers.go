package metrics

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"drtmx/rdma"
	"drtmx/txn"
	"drtmx/txn/stats"
)

// Bounds of asking data servers.
const (
	// SampleInterval is the least time between two samples. A scrape that comes
	// sooner gets the last sample.
	SampleInterval = 100 * time.Millisecond
	// AskTimeout bounds the wait for one server.
	AskTimeout = 2 * time.Second
)

// ErrNotReady reports data servers that cannot serve, or cannot serve yet. Its
// text is one line.
var ErrNotReady = errors.New("not ready")

// Servers asks the data servers of a cluster for their statistics. It is a
// prometheus.Collector. Methods are safe for concurrent use.
type Servers struct {
	ctx   context.Context
	dial  func(context.Context, string) (rdma.Conn, error)
	addrs func() []string
	ask   func(ctx context.Context, dial func(context.Context, string) (rdma.Conn, error), addr string) (*stats.Server, error)

	// Recovering, if set, returns the recoveries of data servers that are
	// starting, the least advanced first. Set it before the first scrape.
	Recovering func() []Recovering

	mu    sync.Mutex // held while a scrape samples; other scrapes wait for that sample
	last  []sample
	taken time.Time
	took  time.Duration
}

// sample is one server's answer.
type sample struct {
	addr  string
	stats *stats.Server // nil if there was none
	err   error
}

// NewServers samples the servers at the addresses that addrs returns; addrs
// returns none while they are starting. It sends no request before the first
// scrape, and running requests end with ctx.
func NewServers(ctx context.Context, dial func(context.Context, string) (rdma.Conn, error), addrs func() []string) *Servers {
	return &Servers{ctx: ctx, dial: dial, addrs: addrs, ask: txn.AskStats}
}

// ServersOf samples the servers of a database.
func ServersOf(ctx context.Context, db *txn.DB) *Servers {
	s := NewServers(ctx, nil, db.Servers)
	numbers := map[string]int{}
	for i, addr := range db.Servers() {
		numbers[addr] = i
	}
	s.ask = func(ctx context.Context, _ func(context.Context, string) (rdma.Conn, error), addr string) (*stats.Server, error) {
		return db.AskStats(ctx, numbers[addr])
	}
	return s
}

// sample asks all servers concurrently.
func (s *Servers) sample() ([]sample, time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.last != nil && time.Since(s.taken) < SampleInterval {
		return s.last, s.took
	}
	start := time.Now()
	addrs := s.addrs()
	out := make([]sample, len(addrs))
	var wg sync.WaitGroup
	for i, addr := range addrs {
		wg.Go(func() {
			ctx, cancel := context.WithTimeoutCause(s.ctx, AskTimeout, fmt.Errorf("no answer within %v", AskTimeout))
			defer cancel()
			st, err := s.ask(ctx, s.dial, addr)
			if err != nil && ctx.Err() != nil {
				err = fmt.Errorf("server %s: %w", addr, context.Cause(ctx))
			}
			out[i] = sample{addr, st, err}
		})
	}
	wg.Wait()
	s.last, s.taken, s.took = out, time.Now(), time.Since(start)
	return out, s.took
}

// Recovering is the recovery of a data server that does not serve yet.
type Recovering struct {
	Server int
	stats.Recovering
}

func (s *Servers) recoveries() []Recovering {
	if s.Recovering == nil {
		return nil
	}
	return s.Recovering()
}

// Ready returns nil if every data server answers and all its partitions are
// loaded and served. Otherwise its error wraps ErrNotReady and names the first
// server that is not ready.
func (s *Servers) Ready() error {
	all, _ := s.sample()
	if len(all) == 0 {
		if all := s.recoveries(); len(all) > 0 {
			r := &all[0]
			return fmt.Errorf("%w: data server %d recovers: %s, %.0f %%", ErrNotReady, r.Server, r.Phase, 100*r.Ratio())
		}
		return fmt.Errorf("%w: the data servers are starting", ErrNotReady)
	}
	for i := range all {
		if err := all[i].ready(); err != nil {
			return fmt.Errorf("%w: data server %d: %w", ErrNotReady, i, err)
		}
	}
	return nil
}

func (a *sample) ready() error {
	switch {
	case a.err != nil:
		return a.err
	case a.stats.Stopping:
		return errors.New("is stopping")
	}
	for _, p := range a.stats.Partitions {
		switch {
		case p.Fenced:
			return fmt.Errorf("partition %d is fenced", p.Partition)
		case !p.Loaded:
			return fmt.Errorf("partition %d is not loaded", p.Partition)
		}
	}
	return nil
}

var (
	scrapeSeconds = gauge("drtmx_scrape_duration_seconds", "Time that the data servers took to answer the last sample.")

	serverUp    = gauge("drtmx_server_up", "1 if the data server answered, else 0; it then has no other metrics.", "server")
	serverReady = gauge("drtmx_server_ready", "1 if the data server is not stopping and all its partitions are loaded and served.", "server")
	serverInfo  = gauge("drtmx_server_info", "Always 1; the labels identify the data server.", "server", "address", "fabric", "pid", "durability")
	serverStart = gauge("drtmx_server_start_time_seconds", "Start time of the data server, in seconds since the Unix epoch.", "server")
	serverEpoch = gauge("drtmx_server_epoch", "Epoch of the data server's partitions.", "server")
	serverLease = gauge("drtmx_server_lease_seconds", "Time for which the data server certainly has its place; only of a durable one with a membership store.", "server")

	serverCPU        = counter("drtmx_server_cpu_seconds_total", "User and system time of the data server's process.", "server")
	serverResident   = gauge("drtmx_server_resident_memory_bytes", "Resident memory of the data server's process, regions included.", "server")
	serverHeap       = gauge("drtmx_server_go_heap_bytes", "Bytes of objects on the Go heap of the data server's process, without regions.", "server")
	serverAgent      = counter("drtmx_server_agent_seconds_total", "Time for which the data server performed verbs that clients would have a device perform: over tcp all verbs, over shm WRITEs and atomics.", "server")
	serverGoroutines = gauge("drtmx_server_goroutines", "Goroutines of the data server's process.", "server")
	serverGC         = counter("drtmx_server_gc_cycles_total", "Garbage collections of the data server's process.", "server")

	serverCalls        = counter("drtmx_server_calls_total", "Procedures called, repeated attempts included.", "server")
	serverSlowCalls    = counter("drtmx_server_slow_calls_total", "Procedures that touched other partitions and were run again in a separate goroutine.", "server")
	serverReads        = counter("drtmx_server_reads_total", "Lookups and scans answered by RPC.", "server", "kind")
	serverDistributed  = counter("drtmx_server_distributed_transactions_total", "Transactions of several partitions that this server coordinated.", "server")
	serverHandovers    = counter("drtmx_server_handovers_total", "Transactions whose decision another server handed over to this server.", "server")
	serverWriters      = gauge("drtmx_server_writers", "Clients that write indexes without the data server, by connection, partition and index.", "server")
	serverOpened       = counter("drtmx_server_writers_opened_total", "Writers of indexes that clients have become.", "server")
	serverSettled      = counter("drtmx_server_writers_settled_total", "Writers whose access has ended, and of which the data server has completed or undone what they had begun.", "server")
	serverOutcomes     = gauge("drtmx_server_outcomes_kept", "Client sessions whose last answer is remembered, so that a repeated commit takes effect once.", "server")
	serverOutcomeBytes = gauge("drtmx_server_outcome_bytes", "Bytes of the answers remembered for repeated requests.", "server")
	serverRepliesLost  = counter("drtmx_server_replies_lost_total", "Answers that could not be sent, because their client was gone.", "server")
	serverDecisions    = gauge("drtmx_server_decisions_kept", "Commits of distributed transactions that are remembered until all who take part know them.", "server")

	serverGreeted      = counter("drtmx_server_clients_greeted_total", "Connections of clients and of other servers that said hello.", "server")
	serverDisconnected = counter("drtmx_server_clients_disconnected_total", "Connections that ended, those of scrapes included.", "server")
	serverRefusals     = counter("drtmx_server_refusals_total", "Peers, connections and verbs that the data server's endpoint refused, by reason, as far as its provider counts them.", "server", "reason")

	logBytes      = counter("drtmx_log_bytes_total", "Bytes appended to the log.", "server")
	logRowBytes   = counter("drtmx_log_row_bytes_total", "Bytes of keys and rows that transactions have written, without bulk loads and without entries of secondary indexes.", "server")
	logRecords    = counter("drtmx_log_records_total", "Records appended to the log.", "server")
	logGroups     = counter("drtmx_log_groups_total", "Groups of records, each written to the log at once; records divided by groups is the mean size.", "server")
	logSyncs      = counter("drtmx_log_syncs_total", "Syncs of the log's files.", "server")
	logPending    = gauge("drtmx_log_pending_bytes", "Bytes appended to the log and not yet durable.", "server")
	logSegments   = gauge("drtmx_log_segments", "Files of the log.", "server")
	logFull       = gauge("drtmx_log_full", "1 if the log has no space: writes are refused until the disk has space again.", "server")
	logFailed     = gauge("drtmx_log_failed", "1 if a write or sync of the log has failed: the data server accepts no writes until it is restarted.", "server")
	logReplay     = gauge("drtmx_log_replay_bytes", "Bytes of the log that a recovery would replay now.", "server")
	logCopies     = gauge("drtmx_log_copies", "Copies of the data server's data at other servers, in sync or not.", "server")
	logInSync     = gauge("drtmx_log_copies_in_sync", "Copies that have everything that was acknowledged.", "server")
	logCopySent   = counter("drtmx_log_copy_sent_bytes_total", "Bytes of log and checkpoints sent to copies of the data server's data.", "server")
	logCopyLag    = gauge("drtmx_log_copy_lag_bytes", "Bytes of the log that the copy which is farthest behind is not known to have.", "server")
	checkpoints   = counter("drtmx_checkpoints_total", "Checkpoints completed.", "server")
	checkpointsNo = counter("drtmx_checkpoint_failures_total", "Checkpoints given up because of an error.", "server")
	checkpointed  = gauge("drtmx_checkpoint_rows", "Rows that the running checkpoint has written; 0 while none runs.", "server")
	checkpointOf  = gauge("drtmx_checkpoint_expected_rows", "Rows that the running checkpoint will have, about; 0 while none runs.", "server")

	recoveringRatio = gauge("drtmx_recovering_ratio", "Part of the present phase of a recovery that is done, from 0 to 1, while the data server does not serve yet.", "server", "phase")
	recoverySeconds = gauge("drtmx_recovery_duration_seconds", "Time that each phase of the recovery took when the data server started.", "server", "phase")
	recoveryDone    = gauge("drtmx_recovery_items", "Rows or records that each phase of the recovery has processed.", "server", "phase")
	recoveryRows    = gauge("drtmx_recovery_rows", "Rows of all indexes after the recovery.", "server")
	recoveryRecords = gauge("drtmx_recovery_log_records", "Records that the recovery replayed from the log.", "server")
	recoveryInDoubt = gauge("drtmx_recovery_in_doubt_transactions", "Transactions that the recovery found prepared and not decided.", "server")

	horizonLag         = gauge("drtmx_partition_horizon_lag_commits", "Commits that can be seen and are not yet durable.", "server", "partition")
	partitionCommits   = counter("drtmx_partition_commits_total", "Transactions that committed in the partition; one of several partitions counts in each.", "server", "partition")
	partitionConflicts = counter("drtmx_partition_conflicts_total", "Commits and prepares that the partition refused or returned for retry.", "server", "partition")
	partitionParked    = counter("drtmx_partition_parked_total", "Commits and calls that waited at the server: for the decision of a transaction in doubt, or behind others for a row.", "server", "partition")
	partitionVain      = counter("drtmx_partition_parked_in_vain_total", "Of these, the ones whose turn, or whose decision, did not come in time.", "server", "partition")
	partitionPrepared  = gauge("drtmx_partition_prepared_transactions", "Transactions in doubt: prepared here and not yet decided, or not yet known to a twin in the next partition.", "server", "partition")
	partitionShipped   = counter("drtmx_partition_shipped_transactions_total", "Transactions of the partition whose keys a twin in the next partition has got.", "server", "partition")
	partitionShipWait  = counter("drtmx_partition_shipping_wait_seconds_total", "Time for which those transactions waited until their keys were in a message.", "server", "partition")
	partitionShipTime  = counter("drtmx_partition_shipping_seconds_total", "Time from then until the message was answered.", "server", "partition")
	partitionShipments = counter("drtmx_partition_shipping_messages_total", "Messages with those keys that were answered.", "server", "partition")
	partitionLoaded    = gauge("drtmx_partition_loaded", "1 if the load is complete.", "server", "partition")
	partitionFenced    = gauge("drtmx_partition_fenced", "1 if the partition is no longer served.", "server", "partition")
	regionUsed         = gauge("drtmx_region_used_bytes", "Bytes of the partition's region in use, free blocks of its indexes included.", "server", "partition")
	regionMapped       = gauge("drtmx_region_mapped_bytes", "Present size of the partition's region.", "server", "partition")
	regionLimit        = gauge("drtmx_region_limit_bytes", "Maximum size of the partition's region.", "server", "partition")

	versions       = gauge("drtmx_versions", "Versions of overwritten and deleted rows that are kept for snapshots.", "server", "partition")
	versionBytes   = gauge("drtmx_version_bytes", "Bytes of these versions.", "server", "partition")
	versionsForced = counter("drtmx_versions_forced_total", "Versions that were freed before their time, or not kept, for want of memory.", "server", "partition")
	floorAge       = gauge("drtmx_floor_age_seconds", "Age of the oldest time that snapshots can read; 0 if no versions are kept.", "server", "partition")
)

// Describe implements prometheus.Collector.
func (s *Servers) Describe(ch chan<- *prometheus.Desc) {
	for _, f := range families {
		if !clientSide[f] {
			ch <- f.desc
		}
	}
}

// Collect implements prometheus.Collector.
func (s *Servers) Collect(ch chan<- prometheus.Metric) {
	all, took := s.sample()
	send(ch, scrapeSeconds, took.Seconds())
	for _, r := range s.recoveries() {
		send(ch, recoveringRatio, r.Ratio(), strconv.Itoa(r.Server), r.Phase)
	}
	for i := range all {
		server := strconv.Itoa(i)
		send(ch, serverUp, truth(all[i].stats != nil), server)
		send(ch, serverReady, truth(all[i].ready() == nil), server)
		if all[i].stats != nil {
			collectServer(ch, server, all[i].stats)
		}
	}
}

func collectServer(ch chan<- prometheus.Metric, server string, st *stats.Server) {
	send(ch, serverInfo, 1, server, st.Address, st.Fabric, strconv.Itoa(st.PID), st.Durability)
	send(ch, serverStart, st.StartUnix, server)
	send(ch, serverEpoch, uint64(st.Epoch), server)
	if st.LeaseLeft != nil {
		send(ch, serverLease, *st.LeaseLeft, server)
	}
	send(ch, serverCPU, st.CPUSeconds, server)
	send(ch, serverResident, st.Process.ResidentBytes, server)
	send(ch, serverHeap, st.Process.HeapBytes, server)
	send(ch, serverAgent, st.AgentSeconds, server)
	send(ch, serverGoroutines, st.Process.Goroutines, server)
	send(ch, serverGC, st.Process.GCCycles, server)
	send(ch, serverCalls, st.Calls, server)
	send(ch, serverSlowCalls, st.SlowCalls, server)
	send(ch, serverReads, st.Lookups, server, "lookup")
	send(ch, serverReads, st.Scans, server, "scan")
	send(ch, serverDistributed, st.Distributed, server)
	send(ch, serverHandovers, st.Handovers, server)
	send(ch, serverWriters, st.Writers, server)
	send(ch, serverOpened, st.WritersOpened, server)
	send(ch, serverSettled, st.WritersSettled, server)
	send(ch, serverOutcomes, st.Outcomes, server)
	send(ch, serverOutcomeBytes, st.OutcomeBytes, server)
	send(ch, serverRepliesLost, st.RepliesLost, server)
	send(ch, serverDecisions, st.Decisions, server)
	send(ch, serverGreeted, st.Greeted, server)
	send(ch, serverDisconnected, st.Disconnected, server)
	for _, r := range st.Refusals {
		send(ch, serverRefusals, r.Count, server, r.Reason)
	}
	if st.Log != nil {
		collectLog(ch, server, st.Log)
	}
	if st.Recovery != nil {
		collectRecovery(ch, server, st.Recovery)
	}
	serverVerbs.send(ch, &st.Verbs, server, st.Fabric)
	for i := range st.Partitions {
		collectPartition(ch, server, &st.Partitions[i])
	}
	for i := range st.Indexes {
		collectIndex(ch, server, &st.Indexes[i])
	}
}

func collectLog(ch chan<- prometheus.Metric, server string, l *stats.Log) {
	send(ch, logBytes, l.Bytes, server)
	send(ch, logRowBytes, l.RowBytes, server)
	send(ch, logRecords, l.Records, server)
	send(ch, logGroups, l.Groups, server)
	send(ch, logSyncs, l.Syncs, server)
	send(ch, logPending, l.PendingBytes, server)
	send(ch, logSegments, l.Segments, server)
	send(ch, logFull, truth(l.Full), server)
	send(ch, logFailed, truth(l.Failed), server)
	send(ch, logReplay, l.ReplayBytes, server)
	send(ch, logCopies, l.Copies, server)
	send(ch, logInSync, l.CopiesInSync, server)
	send(ch, logCopyLag, l.CopyLagBytes, server)
	send(ch, logCopySent, l.CopySentBytes, server)
	send(ch, checkpoints, l.Checkpoints, server)
	send(ch, checkpointsNo, l.CheckpointFailures, server)
	send(ch, checkpointed, l.CheckpointRows, server)
	send(ch, checkpointOf, l.CheckpointRowsTotal, server)
}

func collectRecovery(ch chan<- prometheus.Metric, server string, r *stats.Recovery) {
	for _, p := range r.Phases {
		send(ch, recoverySeconds, p.Seconds, server, p.Name)
		send(ch, recoveryDone, p.Done, server, p.Name)
	}
	send(ch, recoveryRows, r.Rows, server)
	send(ch, recoveryRecords, r.Records, server)
	send(ch, recoveryInDoubt, r.InDoubt, server)
}

func collectPartition(ch chan<- prometheus.Metric, server string, p *stats.Partition) {
	part := strconv.Itoa(p.Partition)
	send(ch, horizonLag, p.HorizonLag, server, part)
	send(ch, partitionCommits, p.Commits, server, part)
	send(ch, partitionConflicts, p.Conflicts, server, part)
	send(ch, partitionParked, p.Parked, server, part)
	send(ch, partitionVain, p.ParkedLong, server, part)
	send(ch, partitionPrepared, p.Prepared, server, part)
	send(ch, partitionShipped, p.Shipped, server, part)
	send(ch, partitionShipments, p.ShippedMessages, server, part)
	send(ch, partitionShipWait, p.ShippedWait, server, part)
	send(ch, partitionShipTime, p.ShippedTime, server, part)
	send(ch, partitionLoaded, truth(p.Loaded), server, part)
	send(ch, partitionFenced, truth(p.Fenced), server, part)
	send(ch, regionUsed, p.UsedBytes, server, part)
	send(ch, regionMapped, p.MappedBytes, server, part)
	send(ch, regionLimit, p.LimitBytes, server, part)
	send(ch, versions, p.Versions, server, part)
	send(ch, versionBytes, p.VersionBytes, server, part)
	send(ch, versionsForced, p.VersionsForced, server, part)
	send(ch, floorAge, p.FloorSeconds, server, part)
}
