package wire

import (
	"encoding/json"
	"fmt"

	"drtmx/internal/placement"
	"drtmx/txn/stats"
)

// Statistics of data servers. Encoded as JSON, they are the answer to OpStats.
type (
	ServerStats    = stats.Server
	ProcessStats   = stats.Process
	PartitionStats = stats.Partition
	IndexStats     = stats.Index
)

// AppendStatsRequest appends a request for the statistics of the partitions
// from the given one on. An answer has as many as fit a message; its Next is
// the first partition of the next request.
func AppendStatsRequest(b []byte, from placement.Partition) []byte {
	return appendPartition(append(b, byte(OpStats)), from)
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
