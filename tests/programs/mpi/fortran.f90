! Messages and a reduction of much data, by the module mpi_f08 and each element checked.
program fortran
  use mpi_f08
  implicit none
  integer :: rank, size, i, round
  integer(8), allocatable :: out(:), in(:), sum(:)
  type(MPI_Request) :: requests(2)
  type(MPI_Status) :: statuses(2)
  call MPI_Init()
  call MPI_Comm_rank(MPI_COMM_WORLD, rank)
  call MPI_Comm_size(MPI_COMM_WORLD, size)
  allocate(out(300000), in(300000), sum(300000))
  do round = 1, 10
    out = [(int(rank, 8) * 1000000 + i + round, i = 1, 300000)]
    in = -1
    call MPI_Irecv(in, 300000, MPI_INTEGER8, modulo(rank - 1, size), 3, MPI_COMM_WORLD, requests(1))
    call MPI_Isend(out, 300000, MPI_INTEGER8, modulo(rank + 1, size), 3, MPI_COMM_WORLD, requests(2))
    call MPI_Waitall(2, requests, statuses)
    if (statuses(1)%MPI_SOURCE /= modulo(rank - 1, size)) stop 2
    if (any(in /= [(int(modulo(rank - 1, size), 8) * 1000000 + i + round, i = 1, 300000)])) stop 3
    sum = out
    call MPI_Allreduce(MPI_IN_PLACE, sum, 300000, MPI_INTEGER8, MPI_SUM, MPI_COMM_WORLD)
    if (any(sum /= [(int(size * (size - 1) / 2, 8) * 1000000 + int(size, 8) * (i + round), i = 1, 300000)])) stop 4
  end do
  if (rank == 0) print '(a)', 'all sums are right'
  call MPI_Finalize()
end program
