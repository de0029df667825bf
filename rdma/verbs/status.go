package verbs

import (
	"fmt"

	"drtmx/rdma"
)

// wcStatus is the status of a completion as the device reports it
// (ibv_wc_status, InfiniBand architecture specification 1.4, 11.6.2).
type wcStatus uint32

// Completion statuses that are distinguished.
const (
	wcSuccess      wcStatus = 0
	wcRemoteInvReq wcStatus = 9
	wcRemoteAccess wcStatus = 10
)

var wcNames = map[wcStatus]string{
	wcSuccess:      "success",
	1:              "local length error",
	2:              "local queue pair operation error",
	3:              "local end-to-end context error",
	4:              "local protection error",
	5:              "flushed",
	6:              "memory window bind error",
	7:              "bad response",
	8:              "local access error",
	wcRemoteInvReq: "remote invalid request",
	wcRemoteAccess: "remote access error",
	11:             "remote operation error",
	12:             "transport retries exceeded",
	13:             "receiver-not-ready retries exceeded",
	14:             "local reliable datagram domain violation",
	15:             "remote invalid reliable datagram request",
	16:             "remote aborted",
	17:             "invalid end-to-end context number",
	18:             "invalid end-to-end context state",
	19:             "fatal error",
	20:             "response timeout",
	21:             "general error",
}

func (s wcStatus) String() string {
	if n, ok := wcNames[s]; ok {
		return n
	}
	return fmt.Sprintf("completion status %d", uint32(s))
}

// status returns the status of the fabric. A connection itself refuses requests
// outside a region or its grant. An access error of the peer's device therefore
// means that the memory was withdrawn: a process that is killed loses its memory
// regions before its queue pairs. Every error moves the queue pair to its error
// state. So all errors mean that the peer is down; the text of the connection's
// error says which one it was.
func (s wcStatus) status() rdma.Status {
	if s == wcSuccess {
		return rdma.StatusOK
	}
	return rdma.StatusPeerDown
}
