package command

import (
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"drtmx/internal/certs"
	"drtmx/internal/cli"
)

func (a *app) certsCommand() *cobra.Command {
	var s certs.Set
	c := &cobra.Command{
		Use:   "certs --dir DIR",
		Short: "Make certificates for experiments with TLS",
		Long: `Makes an authority, and a certificate signed by it for each server and client:
in DIR, ca.pem, HOST.pem and HOST-key.pem, NAME.pem and NAME-key.pem. Keys can
be read by their owner only, and no file is overwritten.

HOST is the name or address at which peers dial the server. The set is for
experiments: the key of the authority, ca-key.pem, is in the same directory, and
any process that can read it can make certificates for clients and servers.`,
		Args: noArgs,
		RunE: func(*cobra.Command, []string) error {
			files, err := certs.Write(s, time.Now())
			if errors.Is(err, certs.ErrOptions) || errors.Is(err, certs.ErrExists) {
				return cli.Usage(fmt.Errorf("drtmx certs: %w", err))
			}
			if err != nil {
				return err
			}
			a.Say("%d files in %s: an authority, %d servers, %d clients, valid for %d days",
				len(files), s.Dir, len(s.Hosts), len(s.Clients), s.Days)
			return nil
		},
	}
	c.Flags().StringVar(&s.Dir, "dir", "", "directory for the files, made if it does not exist")
	c.Flags().StringSliceVar(&s.Hosts, "hosts", []string{"127.0.0.1"}, "names or addresses of servers")
	c.Flags().StringSliceVar(&s.Clients, "clients", []string{"client"}, "clients: NAME, NAME=ROLE, or NAME=ROLE/TABLE/TABLE for one that may use these tables only; ROLE is reader, writer or loader (default loader)")
	c.Flags().IntVar(&s.Days, "days", 90, "validity in days")
	return c
}
