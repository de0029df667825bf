package command

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"drtmx/internal/cluster"
	"drtmx/internal/member"
	"drtmx/internal/member/etcd"
	"drtmx/internal/member/etcd/embedded"
)

// defaultClusterName is the name of a cluster in etcd if nobody gives another.
const defaultClusterName = "drtmx"

// etcdFlags are about a data server whose cluster is kept in etcd.
type etcdFlags struct {
	endpoints     []string
	embedded      bool
	dir, listen   string
	ca, cert, key string
	name          string
	lease         time.Duration
	advertise     string
}

var etcdNames = []string{"etcd", "etcd-embedded", "etcd-dir", "etcd-listen", "etcd-ca", "etcd-cert", "etcd-key", "cluster", "lease", "advertise"}

func (e *etcdFlags) add(c *cobra.Command) {
	fl := c.Flags()
	fl.StringSliceVar(&e.endpoints, "etcd", nil, "with --index: host:port of etcd servers through which the data servers find each other, instead of --members")
	fl.BoolVar(&e.embedded, "etcd-embedded", false, "with --index: run an etcd server in this process; the other data servers name it in --etcd")
	fl.StringVar(&e.dir, "etcd-dir", "", "with --etcd-embedded: directory for etcd's data")
	fl.StringVar(&e.listen, "etcd-listen", "127.0.0.1:2379", "with --etcd-embedded: IP address and port on which etcd listens")
	fl.StringVar(&e.ca, "etcd-ca", "", "PEM file of the authority that signs etcd's certificates")
	fl.StringVar(&e.cert, "etcd-cert", "", "PEM file of this process's certificate for etcd")
	fl.StringVar(&e.key, "etcd-key", "", "PEM file of its key")
	fl.StringVar(&e.name, "cluster", defaultClusterName, "with etcd: name of the cluster")
	fl.DurationVar(&e.lease, "lease", cluster.DefaultLease, "with etcd: time after which a data server that does not renew its lease has lost it")
	fl.StringVar(&e.advertise, "advertise", "", "with etcd: host:port at which clients and other servers dial this data server (default: --listen)")
}

// given reports whether the cluster is kept in etcd.
func (e *etcdFlags) given() bool { return e.embedded || len(e.endpoints) > 0 }

// check looks at the flags of a data server with --index.
func (e *etcdFlags) check(c *cobra.Command, f *serveFlags) error {
	if !e.given() {
		for _, n := range etcdNames {
			if c.Flags().Changed(n) {
				return fmt.Errorf("--%s %s: want --etcd or --etcd-embedded with it", n, c.Flags().Lookup(n).Value)
			}
		}
		return nil
	}
	switch {
	case e.embedded && len(e.endpoints) > 0:
		return errors.New("--etcd and --etcd-embedded: want one of them")
	case e.embedded && e.dir == "":
		return errors.New("--etcd-dir is required for --etcd-embedded: a directory for etcd's data")
	case !e.embedded && (e.dir != "" || c.Flags().Changed("etcd-listen")):
		return errors.New("--etcd-dir and --etcd-listen: want --etcd-embedded with them")
	case len(f.one.members) > 0:
		return errors.New("--members: want it or etcd, not both")
	case f.network() && f.listen == "" && e.advertise == "":
		return errors.New("--listen is required for fabrics tcp and verbs: host:port by which others dial this data server")
	case !f.network() && e.advertise != "":
		return fmt.Errorf("--advertise %s: want --fabrics with tcp or verbs", e.advertise)
	}
	if err := member.CheckName(e.name); err != nil {
		return fmt.Errorf("--cluster: %w", err)
	}
	if err := member.CheckTTL(e.lease); err != nil {
		return fmt.Errorf("--lease: %w", err)
	}
	if _, err := cluster.ParseMembers(slices.DeleteFunc([]string{e.advertise}, func(s string) bool { return s == "" })); err != nil {
		return fmt.Errorf("--advertise %w", err)
	}
	if t := e.tls(); t != nil {
		return t.Check()
	}
	return nil
}

// tls are the certificates, nil without.
func (e *etcdFlags) tls() *etcd.TLS {
	if e.ca == "" && e.cert == "" && e.key == "" {
		return nil
	}
	return &etcd.TLS{CA: e.ca, Cert: e.cert, Key: e.key}
}

// self is where others dial the data server over a network.
func (f *serveFlags) self() []string {
	switch {
	case !f.network():
		return nil
	case f.etcd.advertise != "":
		return []string{f.etcd.advertise}
	}
	return []string{f.listen}
}

// membership is where a data server finds the others, and the etcd that this
// process runs for it.
type membership struct {
	store  member.Store
	server *embedded.Server // nil: others run it
}

// openMembership connects to etcd, which it runs if the flags say so.
func (a *app) openMembership(ctx context.Context, f *serveFlags, records cluster.Log) (m *membership, err error) {
	e, m := &f.etcd, &membership{}
	defer func() {
		if err != nil {
			m, err = nil, errors.Join(err, m.close())
		}
	}()
	endpoints := e.endpoints
	if e.embedded {
		m.server, err = embedded.Start(ctx, embedded.Options{
			Dir: e.dir, Listen: e.listen, TLS: e.tls(), Insecure: f.tls.insecure, Log: etcdLog(records),
		})
		if err != nil {
			return m, err
		}
		endpoints = []string{m.server.Endpoint()}
		a.announce(records, "etcd runs at "+m.server.Endpoint(), "etcd runs", "address", m.server.Endpoint(), "dir", e.dir)
	}
	store, err := etcd.Open(ctx, etcd.Options{Endpoints: endpoints, Name: e.name, TLS: e.tls()})
	if err != nil {
		return m, err
	}
	m.store = store
	return m, nil
}

// etcdLog is where etcd's warnings go: nowhere, unless there is a log.
func etcdLog(records cluster.Log) *slog.Logger {
	if records.File == nil {
		return nil
	}
	return records.Logger()
}

// close disconnects from etcd, and ends the one that this process runs.
func (m *membership) close() error {
	var errs []error
	if m.store != nil {
		errs = append(errs, m.store.Close())
	}
	if m.server != nil {
		errs = append(errs, m.server.Close())
	}
	return errors.Join(errs...)
}
