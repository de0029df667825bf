package ycsb

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	goycsb "github.com/pingcap/go-ycsb/pkg/ycsb"

	"drtmx/rdma/inproc"
)

// Node models the machine of each data server of an embedded store; see inproc.Node.
type Node = inproc.Node

// WeakNode is a data server with one core behind a fast network, slowed down a thousand times.
// Its times are choices, not measurements.
var WeakNode = Node{
	RTT: 2 * time.Microsecond, Verb: 25 * time.Nanosecond, Atomic: 100 * time.Nanosecond, Byte: 0.08,
	Cores: 1, RPC: time.Microsecond, Dilation: 1000,
}

// ErrNoModel reports a store whose data servers cannot be modelled: only those of a store that
// is embedded in this process can.
var ErrNoModel = errors.New("ycsb: only the data servers of a store in this process can be modelled")

// ParseNode parses "weak", or fields that differ from those of WeakNode: "cores=2,rtt=5us".
// Times have units, byte is a number of nanoseconds.
func ParseNode(s string) (Node, error) {
	n := WeakNode
	if s == "weak" {
		return n, nil
	}
	times := map[string]*time.Duration{"rtt": &n.RTT, "verb": &n.Verb, "atomic": &n.Atomic, "rpc": &n.RPC}
	for part := range strings.SplitSeq(s, ",") {
		name, value, _ := strings.Cut(part, "=")
		var err error
		switch {
		case times[name] != nil:
			*times[name], err = time.ParseDuration(value)
		case name == "byte":
			n.Byte, err = strconv.ParseFloat(value, 64)
		case name == "dilation":
			n.Dilation, err = strconv.ParseFloat(value, 64)
		case name == "cores":
			n.Cores, err = strconv.Atoi(value)
		default:
			err = errors.New("unknown")
		}
		if err != nil {
			return n, fmt.Errorf("%q: want weak, or some of rtt=, verb=, atomic= and rpc=TIME, byte=NANOSECONDS, cores=N, dilation=FACTOR", part)
		}
	}
	return n, n.Check()
}

// Model makes the data servers of a database behave as such machines; nil makes them as fast as
// this one again, see inproc.Network.SetNode. It fails with ErrNoModel.
func Model(db goycsb.DB, n *Node) error {
	d, ok := db.(*database)
	if !ok || d.network == nil {
		return ErrNoModel
	}
	return d.network.SetNode(n)
}

// Handled returns how many requests the modelled data servers of a database have handled, and
// how long that took here.
func Handled(db goycsb.DB) (requests uint64, took time.Duration) {
	d, ok := db.(*database)
	if !ok || d.network == nil {
		return 0, 0
	}
	return d.network.Handled()
}
