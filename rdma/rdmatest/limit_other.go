//go:build !linux

package rdmatest

import "errors"

func limitDescriptors(int) (restore func(), err error) {
	return nil, errors.ErrUnsupported
}
